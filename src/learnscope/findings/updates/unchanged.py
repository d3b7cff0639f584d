"""Trainable tensors, or whole layers, of which no bit changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.findings.evidence import evidence_over
from learnscope.findings.updates.rates import CHANGES, Change, groups_of, rates_of
from learnscope.names import in_path
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid, labels_of, rows
from learnscope.reading.words import count, listed, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader


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
    columns = reader.columns()
    spans = [span for label in labels_of(reader, change) for _, span in columns.notes(label, "span")]
    ends = [int(step) for span in spans if span for step in span] or measured.steps.tolist()
    return min(ends), max(ends)


def _size(layers: Sequence[str], model: dict[str, Any]) -> str:
    """How many parameters the layers have; empty if the run does not say."""
    sizes, total = model.get("layer_parameters") or {}, int(model.get("parameters") or 0)
    if not total or not all(layer in sizes for layer in layers):
        return ""
    entries = sum(int(sizes[layer]) for layer in layers)
    return f", {entries:,} of {total:,} parameters, {percent(entries / total)}"


def unchanged_tensors(tensors: TensorChanges, explained: list[str], cuts: Cuts) -> dict[str, int]:
    """Tensors that never changed, with their numbers of measurements; none if nothing at all changed."""
    if not any(tensors.changed.values()):
        return {}
    measured = {name: n for name, n in tensors.measured.items() if n >= cuts.frozen_measurements}
    return {name: n for name, n in measured.items() if not tensors.changed[name] and name not in explained}


def not_moving(
    changes: TensorChanges | UnchangedLayers, measured: dict[str, int], reader: RunReader, cuts: Cuts, more: str
) -> Finding:
    """The finding on unchanged tensors or layers: their numbers of measurements, and a sentence to add."""
    names, n = list(measured), list(measured.values())
    if isinstance(changes, TensorChanges):
        what, part, quantity = "tensor", "stored bit", ParameterChange.visible_share
        others = sum(1 for times in changes.changed.values() if times)
    else:
        what, part, quantity, others = "layer", "weight", ParameterChange.l2, len(changes.changed)
    first, last = changes.span
    held = " held by the optimizer" if reader.manifest.get("optimizers") else ""
    times = count(n[0], "measurement") if min(n) == max(n) else f"{min(n)} to {max(n)} measurements"
    idle = _idle_biases(changes, names)
    more += idle
    return Finding(
        kind="not_moving",
        severity="warning" if min(n) >= cuts.measurements and not idle else "info",
        title=f"{count(len(names), f'trainable {what}')}{held} did not change in {count(last - first, 'step')}",
        detail=f"Not one {part} of {listed(names, cuts.names_listed)} differs in {times}, between steps {first:,} and "
        f"{last:,}, while {count(others, f'other {what}')} moved.{more}",
        advice=_advice(names, reader),
        evidence=evidence_over(changes.span, changes.probe, quantity, min(n), 0.0),
        scopes=names,
    )


def _idle_biases(changes: TensorChanges | UnchangedLayers, names: list[str]) -> str:
    """A sentence if these are biases of layers whose weights move: that is how it has to be in many sound models."""
    if not isinstance(changes, TensorChanges) or not all(name.endswith("bias") for name in names):
        return ""
    if not all(changes.changed.get(f"{name.removesuffix('bias')}weight") for name in names):
        return ""
    return (
        " Their weights do move. A bias has no effect, and no gradient, before a batch norm, or where the loss is of "
        "differences of outputs, as of pairs."
    )


def _advice(names: list[str], reader: RunReader) -> str:
    """By what is known of the learning rates and gradients of these tensors' layers."""
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    reached = [s for i, s in enumerate(norms.scopes) if (norms.values[:, i] > 0).any()]
    with_gradient = [name for name in names if any(in_path(layer, name) for layer in reached)]
    if norms and not with_gradient:
        return (
            f"No gradient other than 0 reached {'its layer' if len(names) == 1 else 'their layers'} in "
            f"{count(len(norms.steps), 'measurement')}: find out why "
            f"{names[0]} does not take part in the loss, or set requires_grad to False."
        )
    if at_rate_zero := _at_rate_zero(names, reader):
        return at_rate_zero
    if low_precision := _low_precision(reader):
        return (
            f"The weights are {low_precision}, in which a change below about |w|/256 of an entry is rounded away: keep "
            "float32 weights for the update, raise the learning rate, or round stochastically."
        )
    if norms:
        return (
            f"The layer of {with_gradient[0]} does get gradients, so look at the step: a learning rate of 0 in its "
            "group, updates too small for its dtype, or a copy of the parameter in the optimizer that the model does "
            "not use."
        )
    return (
        f"Record GradientFlow to see whether {names[0]} gets a gradient; if so, look for a learning rate of 0 in its "
        "group, or for a copy of the parameter in the optimizer that the model does not use."
    )


def _at_rate_zero(names: list[str], reader: RunReader) -> str | None:
    """Advice if every group that holds any of these had a learning rate of 0 at each measurement."""
    holding = [group for group in groups_of(reader) if any(in_path(layer, n) for layer in group.layers for n in names)]
    rates = [rates_of(reader, "group", group.name) for group in holding]
    if not rates or not all(len(rate) and not rate.values.any() for rate in rates):
        return None
    return (
        f"The learning rate of the optimizer's group {listed([group.name for group in holding], 3)} was 0 in all "
        f"{count(min(len(rate) for rate in rates), 'measurement')}: nothing to do if a schedule raises it later, "
        "else give it one."
    )


def _low_precision(reader: RunReader) -> str | None:
    """The one dtype of the recorded changes, or else of all weights, if it has few bits."""
    frame = rows(reader, ParameterChange.sparsity, kind="tensor")
    dtypes = {str(d).removeprefix("torch.") for d in frame["dtype"].dropna()} if "dtype" in frame else set()
    dtypes = dtypes or set((reader.manifest.get("model") or {}).get("dtypes") or {})
    coarse = sorted(d for d in dtypes if d in ("bfloat16", "float16") or d.startswith("float8"))
    return coarse[0] if coarse and len(dtypes) == 1 else None
