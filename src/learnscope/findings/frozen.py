"""Parameters that do not move: in no optimizer, frozen on purpose, or trained in vain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from learnscope.findings.cuts import Cuts
from learnscope.findings.gather import Grid, grid, labels_of, rows
from learnscope.findings.words import count, listed, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class _Moves:
    """For every tensor, in how many of its measurements any stored bit changed, and over which steps."""

    grid: Grid
    measured: dict[str, int]
    moved: dict[str, int]
    span: tuple[int, int]

    def still(self, at_least: int) -> list[str]:
        return [name for name, n in self.measured.items() if n >= at_least and self.moved[name] == 0]


def frozen(reader: RunReader, cuts: Cuts) -> list[Finding]:
    model: dict[str, Any] = reader.manifest.get("model") or {}
    moves = _moves(reader)
    on_purpose, unheld = list(model.get("frozen") or []), list(model.get("trainable_outside_optimizer") or [])
    found = []
    if unheld:
        found.append(_outside(unheld, model, moves, cuts))
    if moves is not None:
        still = [name for name in moves.still(cuts.frozen_measurements) if name not in {*on_purpose, *unheld}]
        if still and any(moves.moved.values()):
            found.append(_still(still, moves, reader, cuts))
        thawed = [name for name in on_purpose if moves.moved.get(name)]
        if thawed:
            found.append(_thawed(thawed, moves, cuts))
    if on_purpose:
        found.append(_on_purpose(on_purpose, model, moves, cuts))
    return found


def _moves(reader: RunReader) -> _Moves | None:
    changes = grid(reader, "ParameterChange", "visible_share", "tensor")
    if not changes:
        return None
    # a measurement in which nothing at all moved (a warm-up at learning rate 0) says nothing about one tensor
    counted = (changes.values > 0).any(axis=1)
    values = changes.values[counted]
    spans = [r.notes.get("span") for label in labels_of(reader, "ParameterChange") for r in reader.records(label)]
    ends = [int(step) for span in spans if span for step in span] or changes.steps.tolist()
    return _Moves(
        changes,
        dict(zip(changes.scopes, np.isfinite(values).sum(axis=0).tolist(), strict=True)),
        dict(zip(changes.scopes, (values > 0).sum(axis=0).tolist(), strict=True)),
        (min(ends), max(ends)),
    )


def _still(names: list[str], moves: _Moves, reader: RunReader, cuts: Cuts) -> Finding:
    n = [moves.measured[name] for name in names]
    first, last = moves.span
    moving = sum(1 for moved in moves.moved.values() if moved)
    held = " held by the optimizer" if reader.manifest.get("optimizers") else ""
    return Finding(
        kind="not_moving",
        severity="warning" if min(n) >= cuts.measurements else "info",
        title=f"{count(len(names), 'trainable tensor')}{held} did not change in {count(last - first, 'step')}",
        detail=f"Not one stored bit of {listed(names, cuts.names_listed)} differs in {_range(n)}, between steps "
        f"{first:,} and {last:,}, while {count(moving, 'other tensor')} moved.",
        advice=_still_advice(names, reader),
        evidence=Evidence(
            probe=moves.grid.probe, name="visible_share", n=min(n), first_step=first, last_step=last, value=0.0
        ),
        scopes=names,
    )


def _still_advice(names: list[str], reader: RunReader) -> str:
    """By what is known of the gradients that these tensors' layers got."""
    norms = grid(reader, "GradientFlow", "norm", stage="stepped")
    reached = [s for i, s in enumerate(norms.scopes) if (norms.values[:, i] > 0).any()]
    # names of parameters carry wrappers' prefixes that a layer's path does not
    with_gradient = [name for name in names if any(f".{layer}." in f".{name}" for layer in reached)]
    if norms and not with_gradient:
        return (
            f"No gradient other than 0 reached {'its layer' if len(names) == 1 else 'their layers'} in "
            f"{count(len(norms.steps), 'measurement')}: find out why "
            f"{names[0]} does not take part in the loss, or set requires_grad to False."
        )
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


def _range(n: list[int]) -> str:
    return count(n[0], "measurement") if min(n) == max(n) else f"{min(n)} to {max(n)} measurements"


def _low_precision(reader: RunReader) -> str | None:
    """The dtype that the changes were recorded with, if it is a coarse one."""
    frame = rows(reader, "ParameterChange", "sparsity", "tensor")
    dtypes = {str(d).removeprefix("torch.") for d in frame["dtype"].dropna()} if "dtype" in frame else set()
    coarse = sorted(d for d in dtypes if d in ("bfloat16", "float16") or d.startswith("float8"))
    return coarse[0] if coarse and len(dtypes) == 1 else None


def _outside(names: list[str], model: dict[str, Any], moves: _Moves | None, cuts: Cuts) -> Finding:
    moved = [name for name in names if moves is not None and moves.moved.get(name)]
    n = max((moves.measured.get(name, 0) for name in names), default=0) if moves is not None else 0
    tensors = int(model.get("tensors") or 0)
    share = f" of {tensors:,}" if tensors else ""
    one = len(names) == 1
    them = "it" if one else "them"
    who = f"{'It is' if one else 'They are'} {listed(names, cuts.names_listed)}"
    if moves is None or n == 0:
        seen = f"{who}. Whether something else moves {them} was not measured (ParameterChange would)."
    elif moved:
        which = "" if len(moved) == len(names) else f": {listed(moved, cuts.names_listed)}"
        subject = "It" if one else "All of them" if len(moved) == len(names) else f"{len(moved)} of them"
        seen = f"{who}. {subject} moved all the same, in {count(n, 'measurement')}{which}."
    else:
        seen = (
            f"{who}. {'It did not move' if one else 'None of them moved'} in {count(n, 'measurement')}, between steps "
            f"{moves.span[0]:,} and {moves.span[1]:,}."
        )
    return Finding(
        kind="outside_optimizer",
        severity="info" if len(moved) == len(names) else "warning",
        title=f"{count(len(names), 'trainable tensor')}{share} in no optimizer",
        detail=seen,
        advice=f"Something else updates {them}: nothing to do, if that is meant."
        if len(moved) == len(names)
        else f"Pass {them} to the optimizer, or set requires_grad to False so that no gradient is computed for {them}.",
        evidence=Evidence(
            probe="run.json", name="trainable_outside_optimizer", n=tensors or len(names), value=float(len(names))
        ),
        scopes=names,
    )


def _thawed(names: list[str], moves: _Moves, cuts: Cuts) -> Finding:
    n = min(moves.measured[name] for name in names)
    times = max(moves.moved[name] for name in names)
    return Finding(
        kind="frozen_but_moving",
        severity="warning",
        title=f"{count(len(names), 'tensor')} changed though frozen when the run began",
        detail=f"Stored bits of {listed(names, cuts.names_listed)} changed in {'' if len(names) == 1 else 'up to '}"
        f"{times:,} of {count(n, 'measurement')}, between steps {moves.span[0]:,} and {moves.span[1]:,}.",
        advice=f"Unfrozen on a schedule, this is as meant. If not, look for what writes "
        f"{'it' if len(names) == 1 else 'them'}: an optimizer that "
        "decays weights without gradients, an average of weights, or code that sets requires_grad again.",
        evidence=Evidence(
            probe=moves.grid.probe, name="visible_share", n=n, first_step=moves.span[0], last_step=moves.span[1],
            value=float(times),
        ),
        scopes=names,
    )  # fmt: skip


def _on_purpose(names: list[str], model: dict[str, Any], moves: _Moves | None, cuts: Cuts) -> Finding:
    tensors, parameters = int(model.get("tensors") or 0), int(model.get("parameters") or 0)
    entries = model.get("frozen_parameters")
    of = f" of {tensors:,}" if tensors else ""
    if entries is not None and parameters:
        share = f"{int(entries):,} of {parameters:,} parameters, {percent(int(entries) / parameters)}"
    else:
        share = f"{percent(len(names) / tensors)} of the tensors" if tensors else "share not recorded"
    n = max((moves.measured.get(name, 0) for name in names), default=0) if moves is not None else 0
    moved = sum(1 for name in names if moves is not None and moves.moved.get(name))
    who = ("It" if moved else "It has not") if len(names) == 1 else f"{moved or 'None'} of them"
    seen = f" {who} changed in {count(n, 'measurement')}." if n else ""
    return Finding(
        kind="frozen",
        severity="info",
        title=f"{count(len(names), 'tensor')}{of} frozen (requires_grad is False): {share}",
        detail=f"{'It is' if len(names) == 1 else 'They are'} {listed(names, cuts.names_listed)}.{seen}",
        advice="Nothing to do if this is meant, as for adapters; else set requires_grad before the optimizer is made.",
        evidence=Evidence(probe="run.json", name="frozen", n=tensors or len(names), value=float(len(names))),
        scopes=names,
    )
