"""Gradient norms of layers from those of their modules, over the logged steps. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.model.adapters.parameters import NO_FAMILY
from learnscope.quantities.adapters import AdapterGradients
from learnscope.reading.gather import NONFINITE, Floats
from learnscope.record import Label
from learnscope.trackers.history import History
from learnscope.trackers.naming import layer_of, type_of

Modules = Sequence[tuple[str, str]]
"""Adapter and name."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A number of groups of modules, [groups, steps]; NaN where there is none, for a reason."""

    groups: list[str]
    steps: list[int]
    values: Floats
    reasons: dict[tuple[int, int], str]

    @property
    def broken(self) -> NDArray[np.bool_]:
        """Where a gradient was there and was not finite."""
        found = np.zeros(self.values.shape, dtype=bool)
        for place, reason in self.reasons.items():
            found[place] = reason in NONFINITE
        return found


def component_name(kind: str, name: str, labels: Mapping[str, Label]) -> str | None:
    """A norm of a module by the part of the adapter, and its stage unless it is what the optimizer was given."""
    if name != AdapterGradients.norm.name or kind != "module":
        return None
    part, stage = str(labels["component"]), str(labels["stage"])
    return part if stage == "stepped" else f"{part}/{stage}"


def components_of(history: History, adapters: Iterable[str]) -> list[str]:
    """The parts of adapters whose gradients were recorded, as the optimizer was given them."""
    known = dict.fromkeys(metric for adapter in adapters for metric in history.metrics(adapter))
    return [metric for metric in known if "/" not in metric]


def modules_with(history: History, adapters: Iterable[str], metric: str) -> list[tuple[str, str]]:
    """All modules of which a number was to be measured, in the model's order."""
    held = history.modules
    wanted = [adapter for adapter in sorted(held, key=lambda one: one == NO_FAMILY) if adapter in set(adapters)]
    return [
        (adapter, module)
        for adapter in wanted
        for module in held[adapter]
        if history.adapters[adapter].has(metric, module)
    ]


def types_of(modules: Iterable[tuple[str, str]]) -> list[str]:
    """The types of modules, as `q_proj`, in the model's order."""
    return list(dict.fromkeys(type_of(module) for _, module in modules))


def by_layer(history: History, modules: Modules, component: str) -> Gathered:
    """√Σ of squared norms over each layer's modules."""
    layers: dict[str, list[tuple[str, str]]] = {}
    for one in modules:
        layers.setdefault(layer_of(one[1]), []).append(one)
    return gathered(history, layers, component, root_of_squares)


def root_of_squares(values: Floats) -> float:
    """The norm of parts from their norms."""
    return float(np.linalg.norm(values))


def gathered(
    history: History, groups: Mapping[str, Modules], metric: str, combine: Callable[[Floats], float]
) -> Gathered:
    """One number a group and step from those of the group's modules.

    A module without a number is left out, as an optimizer leaves out a part without gradient; one that was measured
    and is not finite makes the group's number so.
    """
    steps = history.steps
    values = np.full((len(groups), len(steps)), np.nan)
    reasons: dict[tuple[int, int], str] = {}
    for row, inside in enumerate(groups.values()):
        for column, step in enumerate(steps):
            cells = [history.read(step, adapter, metric, module) for adapter, module in inside]
            why = [reason for _, reason in cells if reason is not None]
            broken = [reason for reason in why if reason in NONFINITE]
            numbers = [value for value, _ in cells if isinstance(value, float | int)]
            if broken or not numbers:
                reasons[row, column] = broken[0] if broken else "; ".join(dict.fromkeys(why))
            else:
                values[row, column] = combine(np.array(numbers, dtype=np.float64))
    return Gathered(list(groups), steps, values, reasons)
