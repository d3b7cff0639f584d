"""A holdout that is worse than training while no training row can have been remembered yet: the two differ."""

from __future__ import annotations

import numpy as np

from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.held_out.first_sight import ALIKE, LEAST_STEPS, few_times
from learnscope.findings.outputs.held_out.worse_on_holdout import WORSE_ON_HOLDOUT, gap
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.loss_course import SURE, Course, Level, loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, grid, series
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

TWICE, THRICE = 2.0, 3.0
"""Times the training loss on new rows, and on rows that came twice, from which the holdout is not of the same data."""
HARDER, HELPED = 1.5, 0.75
"""Times the training loss then that it has later, and share of the holdout loss then that is left at the end: above the
one or below the other, training rows were easier at first than afterwards."""
TWO_PASSES = 2.0
NEW = "no training row that was looked at had come before"
OFTEN = "a training row had come twice on average"


def apart_at_once(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """On rows that it has not seen, a model is as good as on any of their kind: so the holdout is of another."""
    seen, course, held = series(reader, Inputs.seen_share).finite, loss_course(reader), held_out_loss(reader)
    losses, again = held.series.finite, np.flatnonzero(seen.values > 0)
    if course is None or held.stand_in is not None or not len(again) or again[0] < 2 or len(losses) < 3:
        return []
    times = gap(reader)
    if losses.steps[0] > 1 or not _one_loss(course, losses) or times is None or times < TWICE:
        return []
    new, often = int(seen.steps[again[0] - 1]), few_times(reader, seen, TWO_PASSES)
    ways = [(new, TWICE, NEW), *([] if often is None else [(often, THRICE, OFTEN)])]
    for until, least, how in ways:
        settled = not grid(reader, Inputs.norm_drift) or until >= cuts.stale_steps  # running statistics begin anywhere
        place = _worse_by(course, losses, until, least, cuts) if settled and until >= LEAST_STEPS else None
        if place is not None and not _harder_later(course, losses, place):
            return [_finding(course, losses, until, place, how)]
    return []


def _worse_by(course: Course, losses: Series, until: int, least: float, cuts: Cuts) -> int | None:
    """The last holdout measurement up to a step, if it and the one before are that much above the training loss."""
    beside = np.flatnonzero((losses.steps > 1) & (losses.steps <= until))[-2:]
    levels = [_level_at(course, int(losses.steps[place])) for place in beside]
    if len(beside) < 2:
        return None
    theirs = losses.values[beside]
    learned_less = float(theirs[-1]) / float(losses.values[0]) - levels[-1].value / course.start.value
    if learned_less < cuts.generalisation_gap:
        return None
    clear = all(value - level.value > SURE * level.error for value, level in zip(theirs, levels, strict=True))
    ratios = theirs / [level.value for level in levels]
    return int(beside[-1]) if clear and ratios.min() >= cuts.worse_holdout and ratios[-1] >= least else None


def _harder_later(course: Course, losses: Series, place: int) -> bool:
    """Whether the training loss rose afterwards, or what was learned then helps on the holdout: easy rows came first,
    as in a curriculum."""
    level = _level_at(course, int(losses.steps[place]))
    rose = any(later.above(level) > SURE and later.value > HARDER * level.value
               for later in course.levels if later.first > level.last)  # fmt: skip
    return rose or float(losses.values[-1]) < HELPED * float(losses.values[place])


def _one_loss(course: Course, losses: Series) -> bool:
    """Whether both begin about where the other does."""
    first, start = float(losses.values[0]), course.start.value
    return min(first, start) > 0 and 1 / ALIKE < start / first < ALIKE


def _level_at(course: Course, step: int) -> Level:
    return next((level for level in course.levels if level.last >= step), course.end)


def _finding(course: Course, losses: Series, until: int, place: int, how: str) -> Finding:
    level = _level_at(course, int(losses.steps[place]))
    then, step = float(losses.values[place]), int(losses.steps[place])
    return Finding(
        kind="holdout_differs",
        severity="warning",
        title=f"The holdout is not like the training data: its loss is {num(then / level.value)} times that on "
        "training rows that were hardly known",
        detail=f"Up to step {until:,} {how}, and the training loss went "
        f"from {num(course.start.value)} to {num(level.value)}: that is no memory, and other rows of the same kind "
        f"would have about the same loss. The holdout had {num(then)} at step {step:,}, and {num(losses.values[-1])} "
        f"at the end ({count(len(losses), 'measurement')}), where the training loss is {num(course.end.value)}.",
        advice="Compare a training batch and a holdout batch as the model gets them. Look first for columns of the "
        "training data that were made from the target (means of the target by category, fields that are filled in "
        "afterwards), then for other preparation, other sources and another time.",
        evidence=evidence_over((1, step), losses.probe, Holdout.holdout_loss, len(losses), then),
        cause=True,
        explains=WORSE_ON_HOLDOUT[:-1],
        ruled_out=["Overfitting: the gap was there before the model could have memorised its examples."],
        alternatives=["A holdout that is harder on purpose, as of later times or other places: then it is what to "
                      "expect there."],
        since=int(losses.steps[0]),
    )  # fmt: skip
