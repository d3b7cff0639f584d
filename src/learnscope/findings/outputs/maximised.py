"""A loss that is maximised: steps that go up its gradient."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.held_out.wrong_way import wrong_way
from learnscope.findings.ruled_out import said
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.chance import chance_of, guessed_course, guessing, logged_over_mean
from learnscope.reading.course.events import endless_fall, rise
from learnscope.reading.course.loss_course import SURE, Course, loss_course, noise_of
from learnscope.reading.course.movement import moves_of, optimizers_of, options_of, reach_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

UPHILL = 1.0
"""‖Δ‖‖g‖ of one step over the loss, below which a step does not overshoot: if the loss rises, it goes up."""


@analysis(place=10, check="direction of the steps", needs=[Loss.loss])
def loss_maximised(reader: RunReader, cuts: Cuts) -> list[Finding]:
    logged = loss_course(reader)
    if logged is None or len(optimizers_of(reader)) > 1:
        return []
    negated = (logged_over_mean(reader) or 0.0) < 0
    course = guessed_course(reader) or (replace(logged, values=-logged.values) if negated else logged)
    rises = _rises_from_start(course)
    if options_of(reader, "maximize").count(True) and rises:
        return [
            _finding(reader, course, "The optimizer has maximize=True, and its loss rises from the start.", sure=True)
        ]
    if negated and (rises or endless_fall(logged)):
        why = "The logged loss is minus what the loss function returned, and that rises from the start."
        return [_finding(reader, course, why, sure=True)]
    if endless_fall(logged) and not rises:
        why = f"The loss falls ever faster below zero, from {num(logged.start.value)} to {num(logged.end.value)}."
        return [_finding(reader, logged, why, sure=False)]
    if rises and chance_of(reader) is not None and _small_steps(reader, course):
        wrong = _below_chance(reader)
        why = "The loss rises from the very first steps, though these are small enough for the gradient to hold."
        return (
            [_finding(reader, course, f"{why}{wrong}", sure=bool(wrong))] if wrong or _never_fell(course, cuts) else []
        )
    return wrong_way(reader, logged, cuts)


def _rises_from_start(course: Course) -> bool:
    """It never fell, and each fifth of it lies above the one before."""
    found = rise(course)
    levels = course.levels
    fifths = [levels[i * len(levels) // 5] for i in range(5)]
    steadily = all(later.value > earlier.value for earlier, later in pairwise(fifths))
    # in units of the early noise: that of a loss which explodes grows with it
    rises = course.end.value - course.start.value > SURE * noise_of(course.values[: max(20, len(course) // 3)])
    return rises and steadily and (found is None or found.from_start)


def _never_fell(course: Course, cuts: Cuts) -> bool:
    return course.end.value - course.start.value > max(abs(course.start.value), cuts.lost_share)


def _small_steps(reader: RunReader, course: Course) -> bool:
    """Whether the first measured steps were too small to overshoot."""
    reach, moves = reach_of(reader), moves_of(reader)
    if reach is None or moves is None:
        return False
    early = slice(0, max(2, len(reach.steps) // 10))
    losses = np.interp(reach.steps[early], course.steps, np.maximum(np.abs(course.values), 1e-300))
    return bool((reach.change[early] / losses < UPHILL).all() and (moves.per_step[early] < 0.1).all())


def _below_chance(reader: RunReader) -> str:
    """A sentence if the accuracy is below what guessing at random gives."""
    found = guessing(reader)
    if found is None or found.accuracy is None or not found.chance.classes:
        return ""
    even = 1 / max(found.chance.classes, 2)
    if found.accuracy.value > even / 2:
        return ""
    return (
        f" Of the training targets {percent(found.accuracy.value)} are right, fewer than by guessing ({percent(even)})."
    )


def _finding(reader: RunReader, course: Course, why: str, *, sure: bool) -> Finding:
    first, last = int(course.steps[0]), int(course.steps[-1])
    risen = course.end.value - course.start.value
    reach = reach_of(reader)
    small = None
    if reach is not None and len(reach.change):
        start = max(abs(course.start.value), 1e-300)
        small = (
            f"A learning rate that is too high: the first measured step could change the loss by "
            f"{num(float(reach.change[0]))} "
            f"at most, to first order, and it was {num(start)}."
        )
    return Finding(
        kind="loss_maximised",
        severity="critical",
        title=f"The loss is maximised: steps go up its gradient, from {num(course.start.value)} to "
        f"{num(course.end.value)}",
        detail=f"{why} It was {num(course.start.value)} at first and {num(course.end.value)} in the end "
        f"({len(course):,} losses, steps {first:,} to {last:,}).",
        advice="Look for a minus sign in front of the loss, for maximize=True in the optimizer, for a reward that is "
        "minimised, and for loss and score that were exchanged.",
        evidence=evidence_over((first, last), course.probe, course.name, len(course), risen),
        cause=True,
        explains=[
            "diverging", "exploding", "nonfinite", "overfitting", "worsening", "not_learning",
            "learning_rate_too_high", "loss_spike", "bad_batch", "holdout_differs", "dead_units", "zero_gradients",
            "labels_unrelated", "exploding_initialisation",
        ],
        ruled_out=said(small) if sure or small else [],
        alternatives=[] if sure else [
            "A loss that is meant to rise, as of one of two players against each other: then another one falls."
        ],
        since=first,
    )  # fmt: skip
