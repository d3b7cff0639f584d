"""What guessing would reach, and whether a model does better than that on its training batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from learnscope.quantities import Quantity
from learnscope.quantities.outputs import BatchStats, Objective
from learnscope.reading.course.loss_course import FEWEST, SURE, Course, Level, course_of, loss_course
from learnscope.reading.gather import Series, labelled, one_pass, rows, series
from learnscope.store.reader import RunReader

CLASS_LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
NUMBER_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
SAME = 1e-3
"""Relative difference up to which the logged loss is what the loss function returned."""


@dataclass(frozen=True)
class Chance:
    """The best that a constant guess reaches on the targets of the training batches."""

    loss: float | None
    """None if the loss function has no known one."""
    accuracy: float | None
    """The share of the largest class."""
    function: str
    classes: int | None
    probe: str
    name: str

    @property
    def what(self) -> str:
        if self.function in NUMBER_LOSSES:
            return "the best constant"
        return "guessing by the shares of the classes"


def chance_of(reader: RunReader) -> Chance | None:
    """None if neither the loss function nor the classes of batches were recorded, or there is nothing to guess."""
    run = one_pass(reader)
    return run.remember("chance", lambda: _chance(run))


def _chance(reader: RunReader) -> Chance | None:
    functions = functions_of(reader)
    function = functions[0] if len(functions) == 1 else ""
    majority, entropy = _last(reader, Objective.majority_share), _last(reader, Objective.target_entropy)
    constant, classes = _last(reader, Objective.constant_loss), _last(reader, Objective.classes)
    if entropy is not None and majority is not None and majority < 1:
        loss = entropy if function in CLASS_LOSSES else None
        return Chance(loss, majority, function, int(classes) if classes else None, Objective.probe, "target_entropy")
    if constant is not None and constant > 0:
        return Chance(
            constant if function in NUMBER_LOSSES else None, None, function, None, Objective.probe, "constant_loss"
        )
    return _of_batches(reader)


def _of_batches(reader: RunReader) -> Chance | None:
    """From the classes of batches that the loop handed over; the loss function is not known then."""
    frame = rows(reader, BatchStats.share, kind="class")
    if not len(frame):
        return None
    sizes = series(reader, BatchStats.targets)
    weight = frame["step"].map(dict(zip(sizes.steps.tolist(), sizes.values.tolist(), strict=True))).fillna(1.0)
    shares = (frame["value"] * weight).groupby(frame["scope"]).sum()
    shares = shares / shares.sum()
    if not 0 < shares.max() < 1:
        return None
    return Chance(None, float(shares.max()), "", len(shares), BatchStats.probe, BatchStats.share.name)


def _last(reader: RunReader, quantity: Quantity) -> float | None:
    values = series(reader, quantity).finite.values
    return float(values[-1]) if len(values) else None


def functions_of(reader: RunReader) -> list[str]:
    """The loss functions that were called."""
    return [str(name) for name in labelled(reader, Objective.objective_value, "function")]


def reductions_of(reader: RunReader) -> list[str]:
    return [str(name) for name in labelled(reader, Objective.objective_value, "reduction")]


def objective(reader: RunReader) -> Series:
    """What the one loss function returned; empty if there are several."""
    if len(functions_of(reader)) != 1 or len(reductions_of(reader)) > 1:
        return Series(np.zeros(0, np.int64), np.zeros(0), [])
    return series(reader, Objective.objective_value)


def logged_over_objective(reader: RunReader) -> float | None:
    """The logged loss in units of what the loss function returned, if that is always the same; else None."""
    logged, returned = loss_course(reader), objective(reader).finite
    if logged is None or not len(returned):
        return None
    _, ours, theirs = np.intersect1d(logged.steps, returned.steps, return_indices=True)
    below = returned.values[theirs]
    usable = np.abs(below) > 1e-12
    if usable.sum() < 2:
        return None
    ratios = logged.values[ours][usable] / below[usable]
    middle = float(np.median(ratios))
    return middle if middle and (np.abs(ratios / middle - 1) < SAME).mean() > 0.9 else None


def guessed_course(reader: RunReader) -> Course | None:
    """The loss that can be held against chance: the logged one, if it is what the function returned, else that."""
    ratio = logged_over_objective(reader)
    if ratio is not None and abs(ratio - 1) < SAME:
        return loss_course(reader)
    found = objective(reader)
    if reductions_of(reader) == ["sum"] or len(found.finite) < FEWEST:
        return None
    return course_of(found.steps, found.values, found.probe, Objective.objective_value.name)


@dataclass(frozen=True)
class Accuracy:
    """Of the last third of the looked-at batches: the mean, and its standard error from batch to batch."""

    value: float
    error: float
    n: int
    first: int
    last: int

    def above(self, share: float) -> float:
        """By how many standard errors it is above a share."""
        return (self.value - share) / self.error if self.error else math.copysign(math.inf, self.value - share)


def training_accuracy(reader: RunReader) -> Accuracy | None:
    found = series(reader, Objective.objective_accuracy).finite
    n = len(found) // 3
    if n < 3:
        return None
    values = found.values[-n:]
    error = float(values.std(ddof=1)) / math.sqrt(n)
    return Accuracy(float(values.mean()), error, n, int(found.steps[-n]), int(found.steps[-1]))


@dataclass(frozen=True)
class Guessing:
    """A run against chance at its end."""

    chance: Chance
    end: Level | None
    """Of the loss; None if it cannot be held against chance."""
    best: Level | None
    accuracy: Accuracy | None

    @property
    def better(self) -> bool | None:
        """Whether it ever was surely better than guessing; None if nothing tells."""
        answers = []
        if self.best is not None and self.chance.loss is not None:
            below = Level(self.chance.loss, 0.0, 0, 0, 1).above(self.best)
            answers.append(below > SURE and self.best.value < 0.97 * self.chance.loss)
        if self.accuracy is not None and self.chance.accuracy is not None:
            gap = self.accuracy.value - self.chance.accuracy
            answers.append(self.accuracy.above(self.chance.accuracy) > SURE and gap > 0.02)
        return any(answers) if answers else None


def guessing(reader: RunReader) -> Guessing | None:
    """None if what guessing would reach is not known."""
    chance = chance_of(reader)
    if chance is None:
        return None
    course = guessed_course(reader) if chance.loss is not None else None
    accuracy = training_accuracy(reader) if chance.accuracy is not None else None
    if course is None and accuracy is None:
        return None
    return Guessing(chance, course.end if course else None, course.best if course else None, accuracy)
