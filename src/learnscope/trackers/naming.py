"""What callers name: modules with or without PEFT's prefix, adapters, layers by number, components by a letter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from learnscope.core.moment import NotAvailable
from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.names import resolve
from learnscope.options import known_name, whole_number
from learnscope.report.heatmap import shorten
from learnscope.trackers.history import History

LETTERS = {"A": "lora_A", "B": "lora_B", "E": "lora_E"}
"""Short names of an adapter's parts."""


def module_called(history: History, name: str, adapter: str | None) -> tuple[str, str]:
    """The adapter and the module that are meant; an unknown one is refused with the nearest."""
    held = history.modules
    if adapter is not None:
        known_name("adapter", adapter, held)
    searched = held if adapter is None else {adapter: held[adapter]}
    every = dict.fromkeys(module for modules in searched.values() for module in modules)
    found = next((one for one in _spellings(name) if one in every), None)
    if found is None:
        known_name("module", name, every)  # refuses
    assert found is not None
    owners = [owner for owner, modules in searched.items() if found in modules]
    if len(owners) > 1:
        raise ValueError(f"{found} has the adapters {' and '.join(owners)}: say which, adapter={owners[0]!r}")
    return owners[0], found


def _spellings(name: Any) -> list[str]:
    """As given; without what wrappers put into it, read as a module and as a tensor."""
    if not isinstance(name, str) or not name:
        return []
    return [name, resolve(f"{name}.weight").clean.removesuffix(".weight"), resolve(name).clean]


def adapters_called(history: History, adapter: str | None) -> list[str]:
    """The adapter that is meant, and with none named what is in no adapter as well; several are told apart first."""
    held = list(history.modules)
    if adapter is not None:
        known_name("adapter", adapter, held)
        return [adapter]
    named = [one for one in held if one != NO_FAMILY]
    if len(named) > 1:
        raise ValueError(f"there are the adapters {' and '.join(named)}: say which, adapter={named[0]!r}")
    return held


def said(history: History, adapter: str | None) -> str:
    """What a title adds where there are several adapters: which one it is of."""
    several = len([one for one in history.modules if one != NO_FAMILY]) > 1
    return "" if adapter is None or adapter == NO_FAMILY or not several else f" ({shorten(adapter)})"


def in_words(metric: str) -> str:
    """A metric as a figure calls it.

    >>> in_words("effective_rank"), in_words("left_drift/first")
    ('effective rank', 'left drift (first)')
    """
    name, *how = metric.replace("_", " ").split("/")
    return f"{name} ({', '.join(how)})" if how else name


def layer_of(module: str) -> str:
    """The layer that a module is in."""
    return resolve(f"{module}.weight").layer


def type_of(module: str) -> str:
    """What a module is called in every layer: `q_proj`."""
    return resolve(f"{module}.weight").component


def layer_called(given: int | str, layers: Sequence[str]) -> str | None:
    """The layer that is meant by its number or its name; None if it is the name of something else."""
    if isinstance(given, str):
        return next((one for one in _spellings(given) if one in layers), None)
    number = whole_number("layer", given)
    numbers = {layer: resolve(f"{layer}.module.weight").index for layer in layers}
    found = [layer for layer, index in numbers.items() if index == number]
    if not found:
        there = [str(index) for index in dict.fromkeys(numbers.values()) if index is not None]
        known = f"numbered are {', '.join(there)}" if there else f"none has a number; known are {', '.join(layers)}"
        raise ValueError(f"there is no layer {number}: {known}")
    if len(found) > 1:
        raise ValueError(f"layer {number} is {' or '.join(found)}: give its name")
    return found[0]


def component_called(given: str, components: Iterable[str]) -> str:
    """The part of an adapter that is meant, by its letter or by its name."""
    known = list(components)
    if not known:
        raise NotAvailable("no gradient has been logged yet: call log_step after loss.backward()")
    found = given if given in known else LETTERS.get(given, given)
    if found not in known:
        known_name("component", given, known)
    return found


def step_called(given: int, count: int) -> int:
    """An index that a list of so many has."""
    place = given if isinstance(given, int) and not isinstance(given, bool) else whole_number("step_idx", given)
    if not -count <= place < count:
        there = f"there are {count} logged steps" if count else "no step has been logged"
        raise IndexError(f"step_idx={given}: {there}")
    return place
