"""What callers name: modules with or without PEFT's prefix, adapters, layers by number, components by a letter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from learnscope.core.moment import NotAvailable
from learnscope.model.adapters.parameters import OUTSIDE_ADAPTERS
from learnscope.names import resolve
from learnscope.options import known_name, whole_number
from learnscope.report.heatmap import shorten
from learnscope.trackers.history import History

LETTERS = {"A": "lora_A", "B": "lora_B", "E": "lora_E"}
"""Short names of an adapter's parts."""


def find_module(history: History, name: str, adapter: str | None) -> tuple[str, str]:
    """The adapter and the module that are meant; an unknown one is refused with the nearest."""
    if adapter is not None:
        known_name("adapter", adapter, history.families)
    searched = history.families if adapter is None else {adapter: history.families[adapter]}
    every = dict.fromkeys(module for modules in searched.values() for module in modules)
    module = next((spelling for spelling in _spellings(name) if spelling in every), name)
    known_name("module", module, every)
    owners = [owner for owner, modules in searched.items() if module in modules]
    if len(owners) > 1:
        raise ValueError(f"{module} has the adapters {' and '.join(owners)}: say which, adapter={owners[0]!r}")
    return owners[0], module


def _spellings(name: Any) -> list[str]:
    """As given; without the names that wrappers add, read as a module and as a tensor."""
    if not isinstance(name, str) or not name:
        return []
    return [name, resolve(f"{name}.weight").clean.removesuffix(".weight"), resolve(name).clean]


def named_adapters(adapters: Iterable[str]) -> list[str]:
    return [adapter for adapter in adapters if adapter != OUTSIDE_ADAPTERS]


def choose_adapters(history: History, adapter: str | None) -> list[str]:
    """The adapter that is named; without a name the only one, and what is outside adapters."""
    named = named_adapters(history.families)
    if adapter is not None:
        known_name("adapter", adapter, history.families)
        return [adapter]
    if len(named) > 1:
        raise ValueError(f"there are the adapters {' and '.join(named)}: say which, adapter={named[0]!r}")
    return list(history.families)


def title_ending(history: History, adapter: str | None) -> str:
    """The adapter's name in brackets, if there are several."""
    several = len(named_adapters(history.families)) > 1
    return "" if adapter is None or adapter == OUTSIDE_ADAPTERS or not several else f" ({shorten(adapter)})"


def in_words(metric: str) -> str:
    """A metric as a figure calls it.

    >>> in_words("effective_rank"), in_words("left_drift/first")
    ('effective rank', 'left drift (first)')
    """
    name, *labels = metric.replace("_", " ").split("/")
    return f"{name} ({', '.join(labels)})" if labels else name


def layer_of(module: str) -> str:
    return resolve(f"{module}.weight").layer


def type_of(module: str) -> str:
    """What a module is called in every layer: `q_proj`."""
    return resolve(f"{module}.weight").component


def find_layer(layer: int | str, layers: Sequence[str]) -> str | None:
    """The layer that is meant by its number or its name; None if no layer has that name."""
    if isinstance(layer, str):
        return next((spelling for spelling in _spellings(layer) if spelling in layers), None)
    number = whole_number("layer", layer)
    numbers = {name: resolve(f"{name}.module.weight").index for name in layers}
    matches = [name for name, index in numbers.items() if index == number]
    if not matches:
        available = [str(index) for index in dict.fromkeys(numbers.values()) if index is not None]
        known = (
            f"numbered are {', '.join(available)}" if available else f"none has a number; known are {', '.join(layers)}"
        )
        raise ValueError(f"there is no layer {number}: {known}")
    if len(matches) > 1:
        raise ValueError(f"layer {number} is {' or '.join(matches)}: give its name")
    return matches[0]


def find_component(component: str, known: Sequence[str]) -> str:
    """The part of an adapter that is meant, by its letter or by its name."""
    if not known:
        raise NotAvailable("no gradient has been logged yet: call log_step after loss.backward()")
    name = component if component in known else LETTERS.get(component, component)
    if name not in known:
        known_name("component", component, known)
    return name
