"""Layers whose gradient is exactly zero, or never comes.

"Never" is said only where every step was looked at, or the weights did not move either: an expert that the router
leaves out at the measured steps may be trained at others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over, since, span_of
from learnscope.findings.gradients.steps_taken import updates_against_others, updates_of
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, Series, grid, series
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import between, count, listed, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader


@analysis(
    place=30,
    check="gradients that are zero or never come",
    needs=[GradientFlow.norm.of("layer")],
    at_least="measurements",
)
def absent(reader: RunReader, cuts: Cuts) -> list[Finding]:
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    findings = _never(reader, norms, cuts)
    zero = streaks(norms.values == 0, norms.values >= 0, cuts.measurements)
    if (level := no_slope(reader, norms, zero, cuts)) is not None:
        return [*findings, _everywhere(norms, zero, level, cuts)]
    if not every_step(norms.steps):
        zero = [streak for streak in zero if not _moves_all_the_same(reader, norms, streak, cuts)]
    for lasting in (True, False):
        chosen = [streak for streak in zero if streak.lasting is lasting]
        findings += [_zero(norms, chosen, cuts)] if chosen else []
    return findings


def every_step(steps: NDArray[np.int64]) -> bool:
    """Whether no step between the first and the last was left out.

    >>> every_step(np.array([1, 2, 3])), every_step(np.array([10, 20, 30]))
    (True, False)
    """
    return bool((np.diff(steps) == 1).all())


def _moves_all_the_same(reader: RunReader, norms: Grid, streak: Streak, cuts: Cuts) -> bool:
    """Whether the weights of the layer change about as much as those of others between the measurements."""
    since = int(norms.steps[streak.rows[0]])
    updates = updates_against_others(reader, [norms.scopes[streak.column]], since)
    return updates is not None and updates.below < cuts.small_update


def no_slope(reader: RunReader, norms: Grid, zero: Sequence[Streak], cuts: Cuts) -> float | None:
    """The loss at the steps at which every layer's gradient is 0, if that lasts to the end and the loss is not small.

    A loss that is gone has no gradient either, as a margin that all examples keep: nothing is wrong then.
    """
    course = loss_course(reader)
    if course is None or len(zero) < len(norms.scopes) or not zero or not all(streak.lasting for streak in zero):
        return None
    since = max(int(norms.steps[streak.rows[0]]) for streak in zero)
    there = np.isin(course.steps, norms.steps[norms.steps >= since])
    if int(there.sum()) < cuts.measurements or not course.start.value > 0:
        return None
    level = float(np.median(course.values[there]))
    return level if level > cuts.plateau_rest * course.start.value else None


def _zero(norms: Grid, chosen: list[Streak], cuts: Cuts) -> Finding:
    """A gradient is computed, and every entry of it is 0."""
    names = [norms.scopes[streak.column] for streak in chosen]
    single, lasting = len(names) == 1, chosen[0].lasting
    longest = max(chosen, key=lambda streak: len(streak.rows))
    n = int(np.isfinite(norms.values[:, longest.column]).sum())
    span = span_of(chosen, norms.steps)
    if lasting:
        column = max(streak.column for streak in chosen)
        next_up = norms.scopes[column + 1] if column + 1 < len(norms.scopes) else "the loss"
        advice = (
            f"Look at what lies between {norms.scopes[column]} and {next_up}: activations that are all dead, a "
            "multiplication by zero, an output that is computed and not used. Weight decay still shrinks such a layer."
        )
    else:
        advice = (
            f"It passed after step {span[1]:,}: nothing to do, unless those steps were meant to train "
            f"{'this layer' if single else 'these layers'}."
        )
    return Finding(
        kind="zero_gradients",
        severity="warning" if lasting else "info",
        title=f"Gradients are exactly zero in {names[0] if single else f'{len(names)} of {len(norms.scopes)} layers'} "
        f"{since(chosen, norms.steps)}",
        detail=f"Every entry was 0 in {'' if single else 'up to '}{len(longest.rows):,} consecutive "
        f"measurements of {n:,}, {between(*span)}: {listed(names, cuts.names_listed)}.",
        advice=advice,
        evidence=evidence_over(span, norms.probe, GradientFlow.norm, len(longest.rows), 0.0),
        scopes=names,
        since=span[0],
    )


def _everywhere(norms: Grid, zero: Sequence[Streak], level: float, cuts: Cuts) -> Finding:
    """The loss does not depend on the weights any more."""
    span = span_of(zero, norms.steps)
    first = max(int(norms.steps[streak.rows[0]]) for streak in zero)
    n = int((norms.steps >= first).sum())
    return Finding(
        kind="zero_gradients",
        severity="warning",
        title=f"The loss has no slope: every gradient is exactly 0 from step {first:,} on, at a loss of {num(level)}",
        detail=f"Every entry of the gradient of every layer was 0 in {count(n, 'measurement')}, "
        f"{between(first, span[1])}, and the loss was {num(level)} there (median): no weight can change it.",
        advice="Look at what in the loss is flat: a clamp or a margin whose constant part does not depend on the "
        "outputs (labels of 0 and 1 where −1 and 1 are meant), a rounding or a comparison, outputs that are all "
        "beyond the end of an activation.",
        evidence=evidence_over((first, span[1]), norms.probe, GradientFlow.norm, n, 0.0),
        scopes=[norms.scopes[streak.column] for streak in zero][: cuts.names_listed],
        since=first,
    )


def _never(reader: RunReader, norms: Grid, cuts: Cuts) -> list[Finding]:
    """Layers with trainable parameters that no backward reached in any measurement."""
    missing = series(reader, GradientFlow.without_gradient).finite
    if len(missing) < cuts.measurements or missing.values.min() == 0:
        return []
    model = reader.manifest.get("model") or {}
    frozen = [f".{name}" for name in model.get("frozen") or []]
    # names of parameters have wrappers' prefixes that a layer's path does not
    trained = [layer for layer in model.get("layers") or [] if not any(f".{layer}." in name for name in frozen)]
    updates, all_seen = updates_of(reader), every_step(missing.steps)
    ever = [] if updates is None else np.asarray((updates.values > 0).any(axis=0)).tolist()
    moved = {} if updates is None else dict(zip(updates.scopes, ever, strict=True))
    names = [layer for layer in trained if layer not in norms.scopes and (all_seen or not moved.get(layer))]
    if not names:
        return []
    still = all(layer in moved and not moved[layer] for layer in names)
    return [_absent(missing, names, cuts, all_seen=all_seen, still=still)]


def _absent(missing: Series, names: list[str], cuts: Cuts, *, all_seen: bool, still: bool) -> Finding:
    span = int(missing.steps[0]), int(missing.steps[-1])
    fewest, most = int(missing.values.min()), int(missing.values.max())
    tensors = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    quantity = GradientFlow.without_gradient
    who = names[0] if len(names) == 1 else count(len(names), "layer")
    looked = "" if all_seen else f" at any of the {count(len(missing), 'step')} looked at"
    weights = " The weights did not move either." if still else ""
    if not still and not all_seen:
        weights = " Whether the weights moved was not measured (ParameterChange would); other steps may reach them."
    return Finding(
        kind="no_gradient",
        severity="warning" if all_seen or still else "info",
        title=f"No gradient {'ever ' if all_seen else ''}reached {who}{looked}",
        detail=f"In {count(len(missing), 'measurement')}, {between(*span)}, none reached "
        f"{listed(names, cuts.names_listed)}. Of the model's trainable tensors {tensors} had none at each of them."
        f"{weights}",
        advice=f"Check that {names[0]} is called and that its output reaches the loss: not detached, not under "
        "no_grad, not in a branch that these batches never take. If it is not meant to train, set requires_grad to "
        "False.",
        evidence=evidence_over(span, missing.probe, quantity, len(missing), float(fewest)),
        scopes=names,
    )
