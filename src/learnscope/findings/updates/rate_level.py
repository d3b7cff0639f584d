"""A learning rate of 0, or one so low that the steps cannot change the loss."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import gradients_arrive, said
from learnscope.quantities.outputs import Loss
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.course.chance import guessing
from learnscope.reading.course.loss_course import SURE, Course, loss_course
from learnscope.reading.course.movement import (
    Reach,
    adaptive,
    highest_rates,
    moves_of,
    options_of,
    rates_of_groups,
    reach_of,
)
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, Series
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

STANDSTILL = (
    "not_learning", "plateau", "not_moving", "labels_unrelated", "majority_guess", "learning_rate_too_low",
    "vanishing", "embedding_collapse",
)  # fmt: skip
"""What is seen when the weights do not move."""
STILL_STRONG = 0.3
"""Size of gradients after a rate fell, in units of those before, above which it is not these that have faded."""


@analysis(place=11, check="learning rate of 0", needs=[LearningRate.learning_rate], at_least="measurements")
def rate_zero(reader: RunReader, cuts: Cuts) -> list[Finding]:
    rates = highest_rates(reader).finite
    moves = moves_of(reader)
    idle = rates.values == 0
    if len(rates) < cuts.measurements:
        return []
    if (climbs := _below_zero(rates, cuts)) is not None:
        return [climbs]
    if not idle[-1]:
        return _idle_groups(rates_of_groups(reader), cuts)
    last = len(rates) - int(np.argmax(~idle[::-1])) if not idle.all() else 0  # of the zeros that reach the end
    n, since = len(rates) - last, int(rates.steps[last])
    # a schedule that ends at 0 does so at its last steps
    if n < cuts.measurements or n < cuts.idle_share * len(rates):
        return []
    if moves is not None and moves.ratio[moves.steps - moves.lengths >= since].any():
        return []  # another rate than this one moves the weights
    return [_zero(reader, rates, last, n)]


def _below_zero(rates: Series, cuts: Cuts) -> Finding | None:
    """A rate with the wrong sign, as of a linear decay that goes on past its end: steps lead uphill."""
    below = rates.values < 0
    if below.sum() < cuts.measurements:
        return None
    since, lowest, n = int(rates.steps[below][0]), float(rates.values.min()), int(below.sum())
    steps = since, int(rates.steps[below][-1])
    return Finding(
        kind="loss_maximised",
        severity="critical",
        title=f"The learning rate is below 0 from step {since:,} on: every step leads uphill",
        detail=f"It was below 0 in {count(n, 'measurement')} of {len(rates):,}, {between(*steps)}, down to "
        f"{num(lowest)}; the highest was {num(float(rates.values.max()))}.",
        advice="Look at what sets it: a decay that does not stop at 0, such as 1 − step / total in a run that is "
        "longer than total. Bound it, as by max(0, …).",
        evidence=evidence_over(steps, rates.probe, LearningRate.learning_rate, n, lowest),
        cause=True,
        explains=[*STANDSTILL, "diverging", "worsening", "overfitting", "learning_rate_too_high", "exploding",
                  "nonfinite", "loss_spike", "loss_maximised"],
        since=since,
    )  # fmt: skip


def _zero(reader: RunReader, rates: Series, first: int, n: int) -> Finding:
    since, all_along = int(rates.steps[first]), first == 0
    moves = moves_of(reader)
    still = "" if moves is None else f" The weights did not change in {count(len(moves), 'measurement')}."
    if moves is not None and not all_along:
        after = int((moves.steps - moves.lengths >= since).sum())
        still = f" The weights did not change in {count(after, 'measurement')} since." if after else ""
    before = (
        ""
        if all_along
        else f" Before, at step {int(rates.steps[first - 1]):,}, it was {num(float(rates.values[first - 1]))}."
    )
    return Finding(
        kind="learning_rate_zero",
        severity="critical" if all_along else "warning",
        title="The learning rate is 0 throughout: nothing is "
        "trained" if all_along else f"The learning rate is 0 from step {since:,} on: nothing is trained any more",
        detail=f"It was 0 in {'all' if all_along else 'the last'} {count(n, 'measurement')}, "
        f"{between(since, int(rates.steps[-1]))}.{before}{still}",
        advice="Look at what sets it: a schedule that has reached its end or counts epochs as steps (or the "
        "reverse), a "
        "warm-up that begins at 0 and is never stepped, an argument that is 0.",
        evidence=evidence_over((since, int(rates.steps[-1])), rates.probe, LearningRate.learning_rate, n, 0.0),
        cause=True,
        explains=STANDSTILL,
        ruled_out=said(gradients_arrive(reader)),
        since=since,
    )  # fmt: skip


def _idle_groups(rates: Grid, cuts: Cuts) -> list[Finding]:
    """Groups at 0 all along beside others that are trained: no fault by itself, and the reason why they do not move."""
    known = np.isfinite(rates.values).sum(axis=0) >= cuts.measurements
    idle = known & ~(np.nan_to_num(rates.values) != 0).any(axis=0)
    if not idle.any():
        return []
    names = [scope for scope, zero in zip(rates.scopes, idle, strict=True) if zero]
    steps = int(rates.steps[0]), int(rates.steps[-1])
    return [
        Finding(
            kind="learning_rate_zero",
            severity="info",
            title=f"The learning rate of {listed(names, cuts.names_listed)} is 0 throughout",
            detail=f"It was 0 in all {count(len(rates.steps), 'measurement')}, {between(*steps)}, for the optimizer's "
            f"group {listed(names, cuts.names_listed)}, while others were trained.",
            advice="Nothing to do if these are meant to be frozen; else give the group a learning rate.",
            evidence=evidence_over(steps, rates.probe, LearningRate.learning_rate, len(rates.steps), 0.0),
            scopes=names,
            cause=True,
            explains=["not_moving"],
            since=steps[0],
        )
    ]


@analysis(
    place=12, check="learning rate too low", needs=[Loss.loss, LearningRate.learning_rate, ParameterChange.l2]
)  # fmt: skip
def rate_too_low(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Where no step could have changed the loss, whatever its direction, though the gradient is not small."""
    course, reach, rates = loss_course(reader), reach_of(reader), highest_rates(reader).finite
    if course is None or reach is None or not len(rates) or rates.values[-1] <= 0:
        return []
    if (fell := _fell_away(reader, course, reach, rates, cuts)) is not None:
        return [fell]
    if (small := _large_epsilon(reader, course, reach, cuts)) is not None:
        return [small]
    if not course.flat(cuts.little_gain):
        return []
    size = abs(course.start.value)
    reached = _reached(reach, course)
    elastic = float(np.median(reach.elasticity))
    if size == 0 or reached > cuts.idle_reach * size or elastic < cuts.weak_elasticity * size:
        return []
    if reached > max(course.noise, 1e-3 * size):  # more than noise would be seen
        return []
    return [_too_low(reader, course, rates, reached)]


def _large_epsilon(reader: RunReader, course: Course, reach: Reach, cuts: Cuts) -> Finding | None:
    """Adam with an ε far above the gradient's entries: it divides by ε, and steps are as small as the gradient is."""
    eps = [float(value) for value in options_of(reader, "eps") if isinstance(value, int | float)]
    parameters = int((reader.manifest.get("model") or {}).get("parameters") or 0)
    if not eps or not parameters or not adaptive(reader) or course.gained_share > cuts.slow_gain:
        return None
    entry, moves = float(np.median(reach.norm)) / parameters**0.5, moves_of(reader)
    if entry <= 0 or min(eps) < cuts.large_epsilon * entry or moves is None:
        return None
    span = int(moves.steps[0]), int(moves.steps[-1])
    per_step = float(np.median(moves.per_step))
    return Finding(
        kind="learning_rate_too_low",
        severity="warning",
        title=f"The optimizer's ε of {num(min(eps))} makes the steps small: weights move by {percent(per_step)} a step",
        detail=f"An entry of the gradient is {num(entry)} (root mean square, median of "
        f"{count(len(reach.norm), 'measurement')}), and the step is divided by its size plus ε: it is about "
        f"{num(min(eps) / entry)} times smaller than with the usual ε of 1e-8. The loss went from "
        f"{num(course.start.value)} to {num(course.end.value)}.",
        advice="Set eps=1e-8, the usual one, or raise the learning rate by that factor.",
        evidence=evidence_over(span, moves.probe, ParameterChange.update_to_weight, len(moves), per_step),
        cause=True,
        explains=[kind for kind in STANDSTILL if kind != "learning_rate_too_low"],
        ruled_out=said(gradients_arrive(reader)),
        since=int(course.steps[0]),
    )


def _fell_away(reader: RunReader, course: Course, reach: Reach, rates: Series, cuts: Cuts) -> Finding | None:
    """A rate that is next to nothing for half of the run, before the loss had got anywhere."""
    highest = float(rates.values.max())
    up = np.flatnonzero(rates.values > cuts.fallen_rate * highest)
    first = int(up[-1]) + 1
    low = len(rates) - first
    if low < cuts.measurements or low < len(rates) / 2:
        return None
    since, now = int(rates.steps[first]), float(np.median(rates.values[first:]))
    could = _since_then(reach, rates, since)
    if could is None or course.end.value < course.start.value / 2:
        return None
    if could > cuts.idle_reach * abs(course.end.value) and not _stopped_unlearned(reader, course, reach, since):
        return None
    steps = since, int(rates.steps[-1])
    return Finding(
        kind="learning_rate_too_low",
        severity="warning",
        title=f"The learning rate fell to next to nothing by step {since:,}: {num(now)}, from {num(highest)}",
        detail=f"It was at most {num(cuts.fallen_rate)} of its highest value in {count(low, 'measurement')} of "
        f"{count(len(rates), 'measurement')}, {between(*steps)}. What the measured steps could change of the loss "
        "since is "
        f"{num(could)} at most, to first order, and it stands at {num(course.end.value)}, from "
        f"{num(course.start.value)}.",
        advice="Look at what the schedule counts: one that is made for epochs and stepped for every batch ends after a "
        "few batches.",
        evidence=evidence_over(steps, rates.probe, LearningRate.learning_rate, low, now),
        cause=True,
        explains=[kind for kind in STANDSTILL if kind != "learning_rate_too_low"],
        since=since,
    )


def _stopped_unlearned(reader: RunReader, course: Course, reach: Reach, since: int) -> bool:
    """Whether the loss fell until then and stays since, no better than guessing, though its gradient is what it was."""
    guessed = guessing(reader)
    before = [level for level in course.levels if level.last <= since]
    after = [level for level in course.levels if level.first > since]
    if guessed is None or guessed.better is not False or not before or not after:
        return False
    fell = before[0].above(after[0]) > SURE
    stays = all(abs(level.above(course.end)) < SURE for level in after)
    late = reach.steps - reach.lengths >= since
    strong = late.any() and float(np.median(reach.norm[late])) > STILL_STRONG * float(np.median(reach.norm[~late]))
    return fell and stays and bool(strong)


def _since_then(reach: Reach, rates: Series, since: int) -> float | None:
    """What the steps from `since` on could do to the loss: as measured, else in proportion to the learning rate."""
    after = reach.steps - reach.lengths >= since
    if after.any():
        return float((reach.change[after] * reach.lengths[after]).sum())
    before = np.flatnonzero(reach.steps <= since)
    if not len(before):
        return None
    last = int(before[-1])
    rate = float(np.interp(reach.steps[last] - reach.lengths[last] / 2, rates.steps, rates.values))
    later = rates.values[rates.steps >= since]
    spacing = float(np.median(np.diff(rates.steps))) if len(rates) > 1 else 1.0
    return float(reach.change[last] * later.sum() / rate * spacing) if rate > 0 else None


def _reached(reach: Reach, course: Course) -> float:
    """What all steps of the run could have done, where only some changes were measured."""
    measured = float(reach.lengths.sum())
    steps = float(course.steps[-1] - course.steps[0] + 1)
    return reach.total * max(steps / measured, 1.0)


def _too_low(reader: RunReader, course: Course, rates: Series, reached: float) -> Finding:
    moves = moves_of(reader)
    assert moves is not None
    per_step, rate = float(np.median(moves.per_step)), float(np.median(rates.values))
    steps = int(course.steps[-1] - course.steps[0] + 1)
    factor = 10 ** round(np.log10(max(1e-3 / per_step, 10.0))) if per_step > 0 else 1e3
    span = int(moves.steps[0]), int(moves.steps[-1])
    return Finding(
        kind="learning_rate_too_low",
        severity="warning",
        title=f"The learning rate, {num(rate)}, is too low to change the loss: weights move by {percent(per_step)} "
        "a step",
        detail=f"To first order, all {steps:,} steps together could change the loss by at most {num(reached)} "
        "(‖Δ‖‖g‖), "
        f"while it is {num(course.start.value)} with a noise of {num(course.noise)}; it went to "
        f"{num(course.end.value)}. "
        f"‖Δ‖/‖W‖ is {num(per_step)} a step (median of {count(len(moves), 'measurement')}).",
        advice=f"Raise the learning rate about {num(factor)} times: an update of 0.1 % of the weights a step is "
        "usual. If a "
        "warm-up or a schedule sets it, look at the steps it counts.",
        evidence=evidence_over(span, moves.probe, ParameterChange.update_to_weight, len(moves), per_step),
        cause=True,
        explains=[kind for kind in STANDSTILL if kind != "learning_rate_too_low"],
        ruled_out=said(gradients_arrive(reader)),
        alternatives=["Fine-tuning that is meant to change little: then the loss was low when the run began."],
        since=int(course.steps[0]),
    )  # fmt: skip
