"""A training that breaks within its first steps: too few losses for a course, and yet they say why."""

from __future__ import annotations

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Loss, Objective
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.course.chance import chance_of
from learnscope.reading.course.loss_course import FEWEST
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

GREW = 10.0
"""Times its first value to which a loss must have grown before it broke."""
STARTS_HIGH = 5.0
"""Times what guessing reaches, from which a first loss says that the start itself is wrong, before any step."""
EXPLAINS = (
    "nonfinite", "diverging", "exploding", "not_learning", "learning_rate_too_high", "zero_gradients", "not_moving",
    "worsening", "labels_unrelated",
)  # fmt: skip


@analysis(place=12, check="breaking within the first steps", needs=[Loss.loss, ParameterChange.update_to_weight])
def broke_at_once(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A loss that grew from its first steps on until it was not finite, with a first step as large as the weights."""
    loss, moved = series(reader, Loss.loss), series(reader, ParameterChange.update_to_weight).finite
    if not len(loss.broken):
        return []
    end = int(loss.broken[0])
    known = loss.finite.steps < end
    before = Series(loss.finite.steps[known], loss.finite.values[known], [None] * int(known.sum()), loss.probe)
    if not 2 <= len(before) < FEWEST or not 0 < GREW * before.values[0] <= before.values[-1]:
        return []
    if not len(moved) or moved.steps[0] >= end or moved.values[0] < cuts.large_update:
        return []
    return [_finding(reader, before, end, int(moved.steps[0]), float(moved.values[0]))]


def starts_above_guessing(reader: RunReader) -> float | None:
    """The first value of the loss function in units of what guessing reaches; None if not known."""
    chance, objective = chance_of(reader), series(reader, Objective.objective_mean).finite
    if chance is None or not chance.loss or not len(objective):
        return None
    return float(objective.values[0]) / chance.loss


def _finding(reader: RunReader, loss: Series, end: int, at: int, moved: float) -> Finding:
    start = starts_above_guessing(reader)
    wild = start is not None and start >= STARTS_HIGH
    first, last = float(loss.values[0]), float(loss.values[-1])
    grew = (
        f"The loss grew from {num(first)} to {num(last)} in {count(len(loss), 'step')} and was not finite from step "
        f"{end:,} on. The step up to {at:,} changed the weights by {num(moved)} of their size."
    )
    begins = f" The first loss, before any step, was {num(start)} times what guessing reaches." if start else ""
    initial = "The weights as they were at the start, if activations or first losses are huge."
    return Finding(
        kind="exploding_initialisation" if wild else "learning_rate_too_high",
        severity="critical",
        title="The first loss is far above guessing, and the first steps break the training"
        if wild
        else f"The learning rate is too high: the first steps break the training, by step {end:,}",
        detail=grew + begins,
        advice="Draw the weights smaller (by the layers' widths, below 1 for recurrent weights), or normalise."
        if wild
        else "Lower the learning rate by a factor of 10 or more, or begin with a warm-up; clipping bounds steps.",
        evidence=evidence_over((int(loss.steps[0]), end), loss.probe, Loss.loss, len(loss), last / first),
        cause=True,
        explains=EXPLAINS,
        ruled_out=[]
        if wild or start is None
        else [f"Not the initial weights: the first loss is {num(start)} of that."],
        alternatives=[] if wild or start is not None else [initial],
        since=int(loss.steps[1]),
    )
