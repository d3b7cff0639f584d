"""Training that is on its way, at a pace that leads nowhere: every step does what the gradient says, and too little."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis, findings_of
from learnscope.findings.evidence import evidence_over
from learnscope.findings.features.alike import same_outputs
from learnscope.findings.gradients.vanishing import vanishing
from learnscope.findings.ruled_out import gradients_arrive, said
from learnscope.findings.updates.rate_level import STANDSTILL, rate_too_low
from learnscope.quantities.outputs import Loss
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.course.chance import Guessing, guessing
from learnscope.reading.course.loss_course import Course, loss_course
from learnscope.reading.course.movement import highest_rates, moves_of, reach_of
from learnscope.reading.course.pace import Pace, hardly_begun, pace_of, unseen
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

STEADY = 0.2
"""Gain of the second half of a run over that of the first, from which a loss falls in an almost straight line."""


@analysis(
    place=12, check="steps too small to get anywhere", needs=[Loss.loss, LearningRate.learning_rate, ParameterChange.l2]
)
def too_slow(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A loss that falls slowly and steadily, is no better than guessing, and weights that have hardly moved."""
    course, guessed, pace, moves = loss_course(reader), guessing(reader), pace_of(reader), moves_of(reader)
    reach = reach_of(reader)
    if course is None or pace is None or moves is None or reach is None:
        return []
    if not _unlearned(reader, guessed, course, pace, cuts):
        return []
    if guessed is None and pace.way >= cuts.shortest_way and pace.straight <= cuts.straight_way:
        return []  # nobody knows whether there was anything to learn
    on_its_way = guessed is None or (course.improved and _still_falls(course))
    if not hardly_begun(reader, cuts) or not (on_its_way or unseen(pace, cuts)):
        return []
    if float(np.median(reach.elasticity)) < cuts.weak_elasticity * abs(course.start.value):
        return []  # it is the gradient that is too small
    rates = highest_rates(reader).finite
    if not len(rates) or rates.values[-1] <= 0 or rate_too_low(reader, cuts):
        return []
    if same_outputs(reader, cuts):  # larger steps would bring nothing of the inputs through
        return []
    per_step, rate = float(np.median(moves.per_step)), float(np.median(rates.values))
    span = int(moves.steps[0]), int(moves.steps[-1])
    return [
        Finding(
            kind="learning_rate_too_low",
            severity="warning",
            title=f"The learning rate, {num(rate)}, is too low for this run: weights moved by {percent(pace.way)} in "
            "all",
            detail=f"The loss went from {num(course.start.value)} to {num(course.end.value)}"
            f"{' and is no better than guessing yet' if guessed is not None else ''}. To first order all steps "
            f"together could change it by {num(pace.could * abs(course.start.value))} (Σ‖Δ‖‖g‖), and it has lost "
            f"{num(course.start.value - course.end.value)}: each step goes where the gradient points, and they are "
            f"small, ‖Δ‖/‖W‖ = {num(per_step)} (median of {count(len(moves), 'measurement')}).",
            advice="Raise the learning rate 10 to 100 times (an update of 0.1 % of the weights a step is usual; SGD "
            "needs "
            "about 100 times the rate of Adam), or train that much longer.",
            evidence=evidence_over(span, moves.probe, ParameterChange.update_to_weight, len(moves), per_step),
            cause=True,
            explains=[*(kind for kind in STANDSTILL if kind != "learning_rate_too_low"), "worsening", "overfitting"],
            ruled_out=said(gradients_arrive(reader), "Targets that do not belong to the inputs: too little was tried."),
            since=int(course.steps[0]),
        )
    ]


def _unlearned(reader: RunReader, guessed: Guessing | None, course: Course, pace: Pace, cuts: Cuts) -> bool:
    """No better than guessing; where that is not known, a loss that stays, and steps that could not change it."""
    if guessed is not None:
        return guessed.better is False
    lost = findings_of(vanishing, reader, cuts)  # then it is not the rate that keeps the steps small
    return course.flat(cuts.little_gain) and pace.could < cuts.slow_gain and not lost


def _still_falls(course: Course) -> bool:
    half = course.levels[len(course.levels) // 2].value
    first, second = course.start.value - half, half - course.end.value
    return second > STEADY * first > 0 or second > course.noise
