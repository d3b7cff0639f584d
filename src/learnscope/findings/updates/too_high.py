"""A learning rate so high that the loss rises: steps that overshoot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.course import not_meant_to_fall
from learnscope.findings.ruled_out import said
from learnscope.findings.updates.broken_by_batch import batch_that_broke
from learnscope.findings.updates.held_back import decay_of
from learnscope.quantities.outputs import Loss
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.course.chance import guessing
from learnscope.reading.course.events import jump, rise
from learnscope.reading.course.loss_course import Course, loss_course
from learnscope.reading.course.movement import highest_rates, moves_of, optimizers_of, reach_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

EARLY = 20
"""Steps in which a learning rate that is too high from the start shows."""
HARDLY = 0.1
"""‖Δ‖‖g‖ over the loss below which a step is small for the loss, however large it is for the weights."""
THROWN = 10.0
"""Times `blown_up`, from which a single loss says that weights were thrown far away, and not only a noisy batch."""
STARTS_HIGH = 5.0
"""Times what guessing reaches, from which a first loss says that the start itself is wrong, before any step."""


@dataclass(frozen=True)
class Harm:
    """What the loss shows of steps that are too large."""

    sentence: str
    step: int
    """Around which the large steps must be."""
    lasting: bool
    weak: bool = False
    """Whether it is only that the loss has not fallen: many other things would look the same."""


@dataclass(frozen=True)
class Large:
    """The largest step around the harm."""

    step: int
    ratio: float
    """‖Δ‖/‖W‖ of a step."""
    overshoot: float
    """‖Δ‖‖g‖ of it over the loss."""
    usual: float = 0.0
    """The median of the same over all measured steps until the harm."""


@analysis(place=13, check="learning rate too high", needs=[Loss.loss, ParameterChange.update_to_weight])
def rate_too_high(reader: RunReader, cuts: Cuts) -> list[Finding]:
    course, moves = loss_course(reader), moves_of(reader)
    if course is None or moves is None or starts_high(reader) or decay_of(reader, cuts) is not None:
        return []
    harm = None if batch_that_broke(reader, cuts) is not None else _harm(reader, course, cuts)
    large = None if harm is None else _largest(reader, course, harm)
    if harm is None or large is None or (large.ratio < cuts.large_step and large.overshoot < cuts.overshoot):
        return []
    if (
        len(optimizers_of(reader)) > 1 and large.ratio < cuts.large_step
    ):  # losses of players rise in sound trainings too
        return []
    if harm.weak and large.ratio < cuts.large_step and large.usual < cuts.overshoot:
        return []  # one loss of many that vary widely may be small beside the gradient of another
    if large.overshoot < HARDLY and reach_of(reader) is not None:  # weights that begin at 0 grow by any factor
        return []
    return [_finding(reader, course, harm, large, len(moves))]


def starts_high(reader: RunReader) -> float | None:
    """The first loss in units of what guessing reaches, if that is far above 1: no step has been taken by then."""
    guessed = guessing(reader)
    times = None if guessed is None else guessed.starts_high
    return times if times is not None and times >= STARTS_HIGH else None


def _harm(reader: RunReader, course: Course, cuts: Cuts) -> Harm | None:
    jumped, risen, guessed = jump(course), rise(course), guessing(reader)
    if jumped is not None:
        back = f"and was back at step {jumped.back:,}" if jumped.back else "and never came back to where it began"
        sentence = f"The loss jumped from {num(jumped.first)} to {num(jumped.value)} at step {jumped.step:,} {back}"
        return Harm(sentence, jumped.step, course.end.value > jumped.first - 2 * course.noise)
    if risen is not None and risen.lost >= cuts.lost_share and not not_meant_to_fall(reader, course, risen, cuts):
        sentence = f"The loss rose from {num(risen.best.value)} to {num(risen.end.value)} and stayed up"
        return Harm(sentence, min(risen.since, risen.best.last + EARLY), lasting=True)
    first, lowest = float(course.values[0]), min(level.value for level in course.levels)
    highest = course.peak.value
    # one value is weak evidence: the loss must be one that guessing would be better at
    worse = guessed is not None and guessed.better is False
    if worse and lowest > first and highest > first + max(abs(first), course.noise):
        sentence = f"The loss was {num(first)} at first and has been above it ever since, up to {num(highest)}"
        return Harm(sentence, int(course.steps[0]), lasting=True)
    top = int(course.values.argmax())
    if worse and first > 0 and course.values[top] > THROWN * cuts.blown_up * first and course.end.value > first:
        sentence = (
            f"The loss was {num(first)} at first, {num(float(course.values[top]))} at step {course.steps[top]:,}, and "
            "is no better than guessing at the end"
        )
        return Harm(sentence, int(course.steps[top]), lasting=True)
    broken = series(reader, Loss.loss).broken
    if len(broken):
        return Harm(f"The loss is not finite from step {int(broken[0]):,} on", int(broken[0]), lasting=True)
    blown_up = course.values[top] > cuts.blown_up * max(abs(first), course.noise) and course.values.min() >= 0
    if len(optimizers_of(reader)) > 1 and blown_up:
        sentence = (
            f"The loss went from {num(first)} up to {num(float(course.values[top]))} at step {course.steps[top]:,}"
        )
        return Harm(sentence, int(course.steps[top]), lasting=course.end.value > first)
    # a loss that comes down from where the first steps threw it, and never below its first value, has gained nothing
    gained = course.improved and lowest < first - course.noise
    if worse and not gained:
        return Harm("The loss never got below what guessing reaches", int(course.steps[0]), lasting=True, weak=True)
    return None


def _largest(reader: RunReader, course: Course, harm: Harm) -> Large | None:
    """Among the measured changes from the start to a little after the harm."""
    moves, reach = moves_of(reader), reach_of(reader)
    assert moves is not None
    until = harm.step + EARLY
    near = np.flatnonzero(moves.steps - moves.lengths <= until)
    if not len(near):
        return None
    losses = np.interp(moves.steps[near], course.steps, np.maximum(np.abs(course.values), 1e-300))
    overshoot = np.zeros(len(near)) if reach is None else reach.change[near] / losses
    ratio = moves.per_step[near]
    top = int(ratio.argmax())
    usual = float(np.median(overshoot))
    return Large(int(moves.steps[near[top]]), float(ratio[top]), float(overshoot.max()), usual)


def _finding(reader: RunReader, course: Course, harm: Harm, large: Large, n: int) -> Finding:
    rates = highest_rates(reader).finite
    at = f"At a learning rate of {num(float(rates.values.max()))} a" if len(rates) else "A"
    first = f"the first loss was {num(float(course.values[0]))}"
    return Finding(
        kind="learning_rate_too_high",
        severity="critical" if harm.lasting else "warning",
        title=f"The learning rate is too high: a step moves the weights by {num(large.ratio)} times their norm",
        detail=f"{harm.sentence}. {at} step changed the weights by ‖Δ‖/‖W‖ = {num(large.ratio)} around step "
        f"{large.step:,}, and ‖Δ‖‖g‖ reached {num(large.overshoot)} times the loss: steps go past where the gradient "
        f"still holds ({count(n, 'measurement')} of the change).",
        advice=f"Lower the learning rate {_factor(large)} times or more, or warm it up from 0 over the first steps; "
        "clip gradients by norm.",
        evidence=evidence_over(
            (large.step, large.step), ParameterChange.probe, ParameterChange.update_to_weight, n, large.ratio
        ),
        cause=True,
        explains=[
            "diverging", "not_learning", "loss_spike", "exploding", "vanishing",
            "vanishing", "zero_gradients", "dead_units", "saturated_units", "nonfinite", "labels_unrelated",
            "majority_guess", "bad_batch", "worsening", "overfitting", "plateau", "embedding_collapse",
        ],
        ruled_out=said(
            f"Exploding initialisation: {first}, before any step." if _starts_usual(reader) else None,
            "Weight decay: it is not what most of the update is made of." if _decay_known(reader) else None,
        ),
        alternatives=[]
        if _starts_usual(reader)
        else ["An initialisation or inputs of too large a scale: then the loss is high at the first step already, "
              f"before any update; {first}."],
        since=min(large.step, harm.step),
    )  # fmt: skip


def _factor(large: Large) -> str:
    """A power of ten from 10 to 1,000."""
    return num(10 ** float(np.clip(np.ceil(np.log10(max(large.ratio / 0.01, large.overshoot))), 1, 3)))


def _starts_usual(reader: RunReader) -> bool:
    guessed = guessing(reader)
    return guessed is not None and guessed.starts_high is not None and starts_high(reader) is None


def _decay_known(reader: RunReader) -> bool:
    return bool(len(series(reader, LearningRate.weight_decay, kind="group")))
