"""A training loss that rises and stays up, or that stops falling."""

from __future__ import annotations

import math

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Loss, Objective
from learnscope.reading.course.chance import chance_of, guessing, last_of, main_function
from learnscope.reading.course.events import Rise, rise
from learnscope.reading.course.loss_course import FEWEST, SURE, Course, loss_course
from learnscope.reading.course.movement import highest_rates, optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding, Severity
from learnscope.store.reader import RunReader

FAR_BELOW = 3.0
"""Times its first value to which a loss that begins below zero has to fall, for it to be known that it should."""


@analysis(place=16, check="divergence of the loss", needs=[Loss.loss], at_least=FEWEST)
def diverging(reader: RunReader, cuts: Cuts) -> list[Finding]:
    course = loss_course(reader)
    found = None if course is None else rise(course)
    if (
        course is None
        or found is None
        or found.lost < cuts.lost_share
        or not_meant_to_fall(reader, course, found, cuts)
    ):
        return []
    return [_diverging(course, found)]


def not_meant_to_fall(reader: RunReader, course: Course, found: Rise, cuts: Cuts) -> bool:
    """Losses of players against each other, and those around zero, as of a policy, may rise in a sound training."""
    if len(optimizers_of(reader)) > 1:
        # it may be that the other player wins, but not by any number
        size = max(abs(course.start.value), abs(course.peak_before(found.since)), 10 * course.noise)
        return found.end.value < cuts.blown_up * size or bool((course.values < 0).any())
    if last_of(reader, Objective.majority_share) == 1:
        return True
    if 0.05 < float((course.values < 0).mean()) < 0.95:  # the loss of a policy lies around zero and has no usual size
        return True
    if _fades_from_below(reader, course, found):
        return True
    crosses = min(course.best.value, course.start.value) < 0 < max(found.end.value, course.start.value)
    return crosses and not 3 < found.lost < math.inf


def _fades_from_below(reader: RunReader, course: Course, found: Rise) -> bool:
    """A loss of no known function that begins below zero, never falls far below that, and shrinks towards zero.

    So goes what is made of advantages, as of a policy that gets sure of what it does: its size says nothing.
    """
    start, best, end = course.start.value, course.best.value, found.end.value
    return not main_function(reader) and FAR_BELOW * start <= best <= start < end <= 0


def _diverging(course: Course, found: Rise) -> Finding:
    end, best = found.end, found.best
    severity: Severity = "critical" if found.lost >= 1 else "warning"
    had = (
        "It had not fallen at all before" if found.from_start else f"That is {percent(found.lost)} of all it had gained"
    )
    first = between(best.first, best.last)
    return Finding(
        kind="diverging",
        severity=severity,
        title=f"The loss rises and stays up: {num(end.value)} at the end, {num(best.value)} at its best around step "
        f"{best.last:,}",
        detail=f"The loss was {num(best.value)} in {first} and {num(end.value)} in {between(end.first, end.last)} "
        f"(medians of {best.n:,} and {end.n:,} losses, {num(min(end.above(best), 1e6))} standard errors apart), and "
        "was not on "
        f"its way back. {had}. A CUSUM of the losses saw it at step {found.since:,}.",
        advice=f"Go back to a checkpoint before step {found.since:,} and find out what changed there: the learning "
        "rate, the data, the scale of gradients or weights.",
        evidence=evidence_over((best.first, end.last), course.probe, course.name, len(course), end.value - best.value),
        since=found.since,
    )


@analysis(place=90, check="plateau of the loss", needs=[Loss.loss], at_least=FEWEST)
def plateau(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Where the loss stopped falling long before the end, though it is not near its floor."""
    course = loss_course(reader)
    if course is None or len(course) < 5 * FEWEST or not course.improved or rise(course) is not None:
        return []
    levels, end = course.levels, course.end
    falling = [level for level in levels if level.above(end) > SURE]
    since = falling[-1].last if falling else course.start.last
    share = 1 - (since - course.steps[0]) / max(course.steps[-1] - course.steps[0], 1)
    # what is left of the start: a loss that is almost gone has nowhere to go
    if share < cuts.plateau_share or end.value <= cuts.plateau_rest * course.start.value:
        return []
    rates = highest_rates(reader).finite
    if len(rates) and rates.values[-1] == 0:  # which says more than that the loss stays
        return []
    cut = [
        int(step)
        for step, old, new in zip(rates.steps[1:], rates.values[:-1], rates.values[1:], strict=True)
        if new < old / 5
    ]
    fell = [step for step in cut if abs(step - since) <= 0.1 * (course.steps[-1] - course.steps[0])]
    why = (
        f" The learning rate was cut to a fifth or less at step {fell[0]:,}, which is when it stopped." if fell else ""
    )
    return [
        Finding(
            kind="plateau",
            severity="info",
            title=f"The loss has not fallen since step {since:,}, for {percent(float(share))} of the run",
            detail=f"It went from {num(course.start.value)} to {num(end.value)} by then and stayed there within its "
            "noise "
            f"of {num(course.noise)} ({count(len(course), 'loss', 'losses')}).{why}{_against_chance(reader)}",
            advice="If it is not yet what is wanted: try another learning rate from here, and look whether the "
            "model or "
            "the data set the limit (a small sample that it should be able to memorise tells).",
            evidence=evidence_over((since, end.last), course.probe, course.name, len(course), end.value),
            since=since,
        )
    ]  # fmt: skip


def _against_chance(reader: RunReader) -> str:
    found, chance = guessing(reader), chance_of(reader)
    if found is None or chance is None or chance.loss is None:
        return ""
    return f" {chance.what.capitalize()} would give {num(chance.loss)}."
