"""Trainable tensors, or whole layers, of which not one bit changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings.updates.groups import groups_of, rates_of
from learnscope.findings.updates.still import Still
from learnscope.names import in_path
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid, labels_of, rows
from learnscope.reading.words import count, listed
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Moves:
    """For every tensor, in how many of its measurements any stored bit changed, and over which steps."""

    grid: Grid
    measured: dict[str, int]
    moved: dict[str, int]
    span: tuple[int, int]

    def still(self, at_least: int) -> list[str]:
        return [name for name, n in self.measured.items() if n >= at_least and self.moved[name] == 0]


def moves_of(reader: RunReader) -> Moves | None:
    changes = grid(reader, ParameterChange.visible_share, kind="tensor")
    if not changes:
        return None
    # a measurement in which nothing at all moved (a warm-up at learning rate 0) says nothing about one tensor
    counted = (changes.values > 0).any(axis=1)
    values = changes.values[counted]
    spans = [r.notes.get("span") for label in labels_of(reader, ParameterChange) for r in reader.records(label)]
    ends = [int(step) for span in spans if span for step in span] or changes.steps.tolist()
    return Moves(
        changes,
        dict(zip(changes.scopes, np.isfinite(values).sum(axis=0).tolist(), strict=True)),
        dict(zip(changes.scopes, (values > 0).sum(axis=0).tolist(), strict=True)),
        (min(ends), max(ends)),
    )


@dataclass(frozen=True)
class Unmoved:
    """Tensors, or layers where tensors were not measured one by one, without any change in `n` measurements each."""

    names: list[str]
    n: list[int]
    span: tuple[int, int]
    moving: int
    what: str
    source: tuple[str, str]
    """The probe and the name of what was measured."""


def unmoved(moves: Moves | None, resting: Still | None, known: set[str], cuts: Cuts) -> Unmoved | None:
    """What rests though it is neither frozen nor outside the optimizer, `known` being the tensors that are."""
    if moves is not None:
        names = [name for name in moves.still(cuts.frozen_measurements) if name not in known]
        moving = sum(1 for moved in moves.moved.values() if moved)
        if not names or not moving:
            return None
        n = [moves.measured[name] for name in names]
        return Unmoved(names, n, moves.span, moving, "tensor", (moves.grid.probe, ParameterChange.visible_share.name))
    if resting is None:
        return None
    explained = resting.among(list(known))
    names = [layer for layer in resting.layers if layer not in explained]
    if not names:
        return None
    return Unmoved(
        names, [resting.n], resting.span, len(resting.moving), "layer", (resting.probe, ParameterChange.l2.name)
    )


def not_moving(found: Unmoved, reader: RunReader, cuts: Cuts, more: str = "") -> Finding:
    """`more` is what else is to be said of it."""
    first, last = found.span
    held = " held by the optimizer" if reader.manifest.get("optimizers") else ""
    return Finding(
        kind="not_moving",
        severity="warning" if min(found.n) >= cuts.measurements else "info",
        title=f"{count(len(found.names), f'trainable {found.what}')}{held} did not change in "
        f"{count(last - first, 'step')}",
        detail=f"Not one {'stored bit' if found.what == 'tensor' else 'weight'} of "
        f"{listed(found.names, cuts.names_listed)} differs in {_range(found.n)}, between steps {first:,} and {last:,}, "
        f"while {count(found.moving, f'other {found.what}')} moved.{more}",
        advice=_advice(found.names, reader),
        evidence=Evidence(
            probe=found.source[0], name=found.source[1], n=min(found.n), first_step=first, last_step=last, value=0.0
        ),
        scopes=found.names,
    )


def _advice(names: list[str], reader: RunReader) -> str:
    """By what is known of the rates and gradients that these tensors' layers got."""
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    reached = [s for i, s in enumerate(norms.scopes) if (norms.values[:, i] > 0).any()]
    with_gradient = [name for name in names if any(in_path(layer, name) for layer in reached)]
    if norms and not with_gradient:
        return (
            f"No gradient other than 0 reached {'its layer' if len(names) == 1 else 'their layers'} in "
            f"{count(len(norms.steps), 'measurement')}: find out why "
            f"{names[0]} does not take part in the loss, or set requires_grad to False."
        )
    resting = _at_rate_zero(names, reader)
    if resting:
        return resting
    low_precision = _low_precision(reader)
    if low_precision:
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
    """Advice where every group that holds any of these had a learning rate of 0 at each measurement."""
    holding = [group for group in groups_of(reader) if any(in_path(layer, n) for layer in group.layers for n in names)]
    rates = [rates_of(reader, "group", group.name) for group in holding]
    if not rates or not all(len(rate) and not rate.values.any() for rate in rates):
        return None
    return (
        f"The learning rate of the optimizer's group {listed([group.name for group in holding], 3)} was 0 in all "
        f"{count(min(len(rate) for rate in rates), 'measurement')}: nothing to do if a schedule is to raise it later, "
        "else give it one."
    )


def _range(n: list[int]) -> str:
    return count(n[0], "measurement") if min(n) == max(n) else f"{min(n)} to {max(n)} measurements"


def _low_precision(reader: RunReader) -> str | None:
    """The dtype that the changes were recorded with, or else that of all weights, if it is a coarse one."""
    frame = rows(reader, ParameterChange.sparsity, kind="tensor")
    dtypes = {str(d).removeprefix("torch.") for d in frame["dtype"].dropna()} if "dtype" in frame else set()
    dtypes = dtypes or set((reader.manifest.get("model") or {}).get("dtypes") or {})
    coarse = sorted(d for d in dtypes if d in ("bfloat16", "float16") or d.startswith("float8"))
    return coarse[0] if coarse and len(dtypes) == 1 else None
