"""Trainable tensors, or whole layers, of which no bit changes."""

from __future__ import annotations

from learnscope.findings.evidence import evidence_over
from learnscope.findings.updates.change_counts import TensorChanges, UnchangedLayers
from learnscope.findings.updates.rates import groups_of, rates_of
from learnscope.names import in_path
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import grid, rows
from learnscope.reading.words import count, listed
from learnscope.record import Finding
from learnscope.store.reader import RunReader


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
    return Finding(
        kind="not_moving",
        severity="warning" if min(n) >= cuts.measurements else "info",
        title=f"{count(len(names), f'trainable {what}')}{held} did not change in {count(last - first, 'step')}",
        detail=f"Not one {part} of {listed(names, cuts.names_listed)} differs in {times}, between steps {first:,} and "
        f"{last:,}, while {count(others, f'other {what}')} moved.{more}",
        advice=_advice(names, reader),
        evidence=evidence_over(changes.span, changes.probe, quantity, min(n), 0.0),
        scopes=names,
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
