"""In how many measurements each tensor and layer changed."""

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
class TensorChanges:
    """For every tensor, in how many of its measurements any stored bit changed."""

    probe: str
    measured: dict[str, int]
    changed: dict[str, int]
    span: tuple[int, int]


def tensor_changes(reader: RunReader) -> TensorChanges | None:
    shares = grid(reader, ParameterChange.visible_share, kind="tensor")
    if not shares:
        return None
    values = shares.values[_any_change(shares)]
    return TensorChanges(
        shares.probe,
        dict(zip(shares.scopes, np.isfinite(values).sum(axis=0).tolist(), strict=True)),
        dict(zip(shares.scopes, (values > 0).sum(axis=0).tolist(), strict=True)),
        _span(reader, ParameterChange, shares),
    )


@dataclass(frozen=True)
class UnchangedLayers:
    """Layers that did not change in `n` measurements in which others did."""

    probe: str
    layers: list[str]
    groups: list[str]
    """Unchanged groups: named ones, and those of the optimizer that have a name."""
    changed: list[str]
    n: int
    span: tuple[int, int]

    def holding(self, names: Sequence[str]) -> list[str]:
        """The unchanged layers that hold any of these parameters; names of parameters have wrappers' prefixes."""
        return [layer for layer in self.layers if any(f".{layer}." in f".{name}" for name in names)]

    def whole_groups(self, layers: Sequence[str], model: dict[str, Any], limit: int) -> str:
        """A sentence on the groups that consist of these layers; empty if there are none."""
        names = [group for group in self.groups if any(in_path(group, layer) for layer in layers)]
        if not names:
            return ""
        members = [layer for layer in layers if any(in_path(name, layer) for name in names)]
        others = sum(layer not in members for layer in self.changed)
        return (
            f" That is the whole of {listed(names, limit)} ({count(len(members), 'layer')}{_size(members, model)}), "
            f"while {count(others, 'other layer')} moved."
        )


def unchanged_layers(reader: RunReader, at_least: int) -> UnchangedLayers | None:
    """None if nothing was measured, everything changed, or nothing did: then no measurement counts."""
    change, norms = next(((c, g) for c in CHANGES if (g := grid(reader, c.l2))), (None, None))
    if change is None or norms is None:
        return None
    counted = _any_change(norms)
    layers = _unchanged(norms, counted, at_least)
    if not layers:
        return None
    groups: list[str] = []
    for kind in ("named", "group"):
        of_groups = grid(reader, change.l2, kind=kind)
        groups += _unchanged(of_groups, np.isin(of_groups.steps, norms.steps[counted]), at_least) if of_groups else []
    column = norms.values[counted][:, norms.scopes.index(layers[0])]
    changed = [scope for scope, values in zip(norms.scopes, norms.values.T, strict=True) if (values > 0).any()]
    n, span = int(np.isfinite(column).sum()), _span(reader, change, norms)
    return UnchangedLayers(norms.probe, layers, list(dict.fromkeys(groups)), changed, n, span)


def _any_change(changes: Grid) -> NDArray[np.bool_]:
    """The measurements that count: if nothing changed (a warm-up at learning rate 0), none says anything of a scope."""
    return np.asarray((changes.values > 0).any(axis=1))


def _unchanged(norms: Grid, counted: NDArray[np.bool_], at_least: int) -> list[str]:
    values = norms.values[counted]
    measured = np.isfinite(values).sum(axis=0)
    changed = (values != 0).any(axis=0, where=np.isfinite(values)) | norms.broken[counted].any(axis=0)
    return [s for s, n, c in zip(norms.scopes, measured, changed, strict=True) if n >= at_least and not c]


def _span(reader: RunReader, change: Change, measured: Grid) -> tuple[int, int]:
    spans = [record.notes.get("span") for label in labels_of(reader, change) for record in reader.records(label)]
    ends = [int(step) for span in spans if span for step in span] or measured.steps.tolist()
    return min(ends), max(ends)


def _size(layers: Sequence[str], model: dict[str, Any]) -> str:
    """How many parameters the layers have; empty if the run does not say."""
    sizes, total = model.get("layer_parameters") or {}, int(model.get("parameters") or 0)
    if not total or not all(layer in sizes for layer in layers):
        return ""
    entries = sum(int(sizes[layer]) for layer in layers)
    return f", {entries:,} of {total:,} parameters, {percent(entries / total)}"
