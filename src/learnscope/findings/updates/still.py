"""Layers, and whole groups of them, whose weights stay what they are while others move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.names import in_path
from learnscope.quantities.updates import ParameterChange, WeightDelta
from learnscope.reading.gather import Grid, grid, labels_of
from learnscope.reading.words import count, listed, percent
from learnscope.store.reader import RunReader

Change = type[ParameterChange] | type[WeightDelta]
CHANGES: tuple[Change, ...] = (ParameterChange, WeightDelta)
"""Both record `l2`, which is 0 only if no weight changed."""


@dataclass(frozen=True)
class Still:
    """What did not move at all in `n` measurements in which something else did."""

    probe: str
    layers: list[str]
    groups: list[str]
    """Named groups and the optimizer's, of the latter only those with a name."""
    moving: list[str]
    n: int
    span: tuple[int, int]

    def among(self, names: Sequence[str]) -> list[str]:
        """The layers that hold any of these parameters; names of parameters carry wrappers' prefixes."""
        return [layer for layer in self.layers if any(f".{layer}." in f".{name}" for name in names)]

    def groups_of(self, layers: Sequence[str]) -> list[str]:
        """The groups whose name stands in the path of one of these layers."""
        return [group for group in self.groups if any(in_path(group, layer) for layer in layers)]


def still(reader: RunReader, at_least: int) -> Still | None:
    """None if nothing was measured, nothing rests, or nothing moves: then no measurement counts."""
    for change in CHANGES:
        layers = grid(reader, change.l2)
        if layers:
            break
    else:
        return None
    # a measurement in which nothing at all moved (a warm-up at learning rate 0) says nothing about one layer
    moved = layers.values > 0
    counted = np.array([bool(row.any()) for row in moved])
    resting = _resting(layers, counted, at_least)
    moving = [scope for scope, some in zip(layers.scopes, moved.T, strict=True) if some.any()]
    if not resting:
        return None
    groups: list[str] = []
    for kind in ("named", "group"):
        found = grid(reader, change.l2, kind=kind)
        if found:
            groups += _resting(found, np.isin(found.steps, layers.steps[counted]), at_least)
    column = layers.values[counted][:, layers.scopes.index(resting[0])]
    return Still(
        layers.probe, resting, list(dict.fromkeys(groups)), moving, int(np.isfinite(column).sum()),
        _span(reader, change, layers),
    )  # fmt: skip


def _resting(found: Grid, counted: NDArray[np.bool_], at_least: int) -> list[str]:
    values = found.values[counted]
    measured = np.isfinite(values).sum(axis=0)
    moved = (values != 0).any(axis=0, where=np.isfinite(values)) | found.broken[counted].any(axis=0)
    return [s for s, n, m in zip(found.scopes, measured, moved, strict=True) if n >= at_least and not m]


def _span(reader: RunReader, change: Change, found: Grid) -> tuple[int, int]:
    spans = [record.notes.get("span") for label in labels_of(reader, change) for record in reader.records(label)]
    ends = [int(step) for span in spans if span for step in span] or found.steps.tolist()
    return min(ends), max(ends)


def sized(layers: Sequence[str], model: dict[str, Any]) -> str:
    """How many parameters layers have, in the words of a sentence; empty where the run does not say."""
    sizes = model.get("layer_parameters") or {}
    total = int(model.get("parameters") or 0)
    if not total or not all(layer in sizes for layer in layers):
        return ""
    entries = sum(int(sizes[layer]) for layer in layers)
    return f"{entries:,} of {total:,} parameters, {percent(entries / total)}"


def whole_groups(found: Still, layers: Sequence[str], model: dict[str, Any], limit: int) -> str:
    """A sentence on the groups that these layers make up; empty if there is none."""
    names = found.groups_of(layers)
    if not names:
        return ""
    inside = [layer for layer in layers if any(in_path(name, layer) for name in names)]
    size = sized(inside, model)
    others = [layer for layer in found.moving if layer not in inside]
    return (
        f" That is the whole of {listed(names, limit)} ({count(len(inside), 'layer')}{', ' + size if size else ''}), "
        f"while {count(len(others), 'other layer')} moved."
    )
