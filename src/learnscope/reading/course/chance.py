"""What guessing would reach, and whether a model does better than that on its training batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from learnscope.quantities import Quantity
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import BatchStats, Objective
from learnscope.reading.course.loss_course import FEWEST, SURE, Course, Level, course_of, loss_course
from learnscope.reading.gather import Series, labelled, labels_of, one_pass, rows, series
from learnscope.store.reader import RunReader

NUMBER_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
SAME = 1e-3
"""Relative difference up to which the logged loss is what the loss function returned."""
AT_CHANCE = 0.97, 1.15
"""Shares of what guessing reaches between which a loss is at chance: far above, it is something else that is wrong."""
TRIPLETS = "triplet_margin_loss"
BY_HAND = "a loss written by hand"
AT_START = 3
"""Steps up to which outputs are those of a model that has learned nothing."""
MUCH_ALIKE = 2.0
"""Times 1/K, up to which the most likely of K classes says that the outputs are much alike."""
NEAR_EVEN = 0.93, 1.12
"""Shares of ln K between which a first loss is a cross-entropy of such outputs."""
MOST = 0.5
"""Share of its start that a loss has lost, of which it is not known what guessing reaches, for it to be learned."""
BETTER = 0.02
"""Accuracy above that of guessing from which a model has learned something."""


@dataclass(frozen=True)
class Chance:
    """The best that a constant guess reaches on the targets of the training batches."""

    loss: float | None
    """For each target; None if the loss function has no known one."""
    accuracy: float | None
    """The share of the largest class."""
    function: str
    classes: int | None
    probe: str
    name: str
    at_zero: float = 0.0
    """Of mse_loss: that of outputs of 0, as those of a model that has learned nothing are; targets may lie far off."""

    @property
    def numbers(self) -> bool:
        return self.function in NUMBER_LOSSES

    @property
    def what(self) -> str:
        if self.function == BY_HAND:
            return "guessing all classes alike"
        if self.function == TRIPLETS:
            return "outputs that are all the same"
        return "the best constant" if self.numbers else "guessing by the shares of the classes"


def chance_of(reader: RunReader) -> Chance | None:
    """None if neither the loss function nor the classes of batches were recorded, or there is nothing to guess."""
    run = one_pass(reader)
    return run.remember("chance", lambda: _chance(run))


def _chance(reader: RunReader) -> Chance | None:
    function = main_function(reader)
    majority, entropy = last_of(reader, Objective.majority_share), last_of(reader, Objective.target_entropy)
    constant, classes = last_of(reader, Objective.constant_loss), last_of(reader, Objective.classes)
    if entropy is not None and majority is not None:
        if entropy <= 0 or majority >= 1:
            return None
        number = int(classes) if classes else None
        if len(series(reader, Objective.constant_loss)) and main_function(reader).startswith("binary"):
            entropy = constant  # none where the loss is weighted: it cannot be held against that of a guess
        return Chance(entropy, majority, function, number, Objective.probe, Objective.target_entropy.name)
    if constant is not None and constant > 0:
        return Chance(
            constant, None, function, None, Objective.probe, Objective.constant_loss.name, _at_zero(reader, function)
        )
    return _of_batches(reader) or _of_outputs(reader)


def _at_zero(reader: RunReader, function: str) -> float:
    mean, deviation = last_of(reader, Objective.target_mean), last_of(reader, Objective.target_std)
    return mean**2 + deviation**2 if function == "mse_loss" and mean is not None and deviation is not None else 0.0


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


def _of_outputs(reader: RunReader) -> Chance | None:
    """From the outputs alone, for a loss that is written by hand: ln K of K outputs.

    Before any step the outputs of most models are much alike. If the loss of the first step is ln K then, it is a
    cross-entropy over them, whatever the targets are. Of classes of unequal size a constant guess reaches less, which
    is not known: a loss that stays at ln K is at chance in any case.
    """
    course = loss_course(reader)
    width, sure = (series(reader, q, data="train").finite for q in (Inputs.output_width, Inputs.output_confidence))
    if course is None or not len(width) or not len(sure) or main_function(reader) or int(sure.steps[0]) > AT_START:
        return None
    classes = int(width.values[0])
    even = math.log(max(classes, 2))
    alike = bool(np.all(width.values == classes)) and float(sure.values[0]) < MUCH_ALIKE / classes
    if not alike or not NEAR_EVEN[0] * even < float(course.values[0]) < NEAR_EVEN[1] * even:
        return None
    return Chance(even, None, BY_HAND, classes, Inputs.probe, Inputs.output_width.name)


def last_of(reader: RunReader, quantity: Quantity) -> float | None:
    values = series(reader, quantity).finite.values
    return float(values[-1]) if len(values) else None


def main_function(reader: RunReader) -> str:
    """The loss function that shares and statistics are of; empty if none was seen."""
    columns = reader.columns()
    noted = [note for label in labels_of(reader, Objective) for _, note in columns.notes(label, "of") if note]
    if noted:
        return str(noted[-1]).partition(" ")[0]
    functions = [str(name) for name in labelled(reader, Objective.objective_mean, "function")]
    return functions[0] if len(functions) == 1 else ""


def main_width(reader: RunReader) -> int | None:
    """How many columns the outputs have that the main loss function is given; None if that was not noted."""
    columns = reader.columns()
    noted = [note for label in labels_of(reader, Objective) for _, note in columns.notes(label, "of") if note]
    width = str(noted[-1]).rpartition(" of ")[2] if noted else ""
    return int(width) if width.isdecimal() else None


def one_question(reader: RunReader) -> bool:
    """Whether a yes/no answer is asked for once an example, as of two classes: not for every pixel of a mask."""
    width = series(reader, Inputs.output_width, data="train").finite.values
    return main_width(reader) == 1 and not (len(width) and float(np.median(width)) > 1)


def reductions_of(reader: RunReader) -> list[str]:
    return [str(name) for name in labelled(reader, Objective.objective_value, "reduction")]


def objective_mean(reader: RunReader) -> Series:
    """The loss of one target on average, by the main loss function."""
    return series(reader, Objective.objective_mean, function=main_function(reader))


def logged_over_mean(reader: RunReader) -> float | None:
    """The logged loss in units of that of one target, if that is always the same; else None."""
    logged, mean = loss_course(reader), objective_mean(reader).finite
    if logged is None or not len(mean):
        return None
    _, ours, theirs = np.intersect1d(logged.steps, mean.steps, return_indices=True)
    below = mean.values[theirs]
    usable = np.abs(below) > 1e-12
    if usable.sum() < 2:
        return None
    ratios = logged.values[ours][usable] / below[usable]
    middle = float(np.median(ratios))
    return middle if middle and (np.abs(ratios / middle - 1) < SAME).mean() > 0.9 else None


def guessed_course(reader: RunReader) -> Course | None:
    """The loss that can be held against chance: the logged one in units of one target, else that of the function."""
    run = one_pass(reader)
    return run.remember("guessed course", lambda: _guessed_course(run))


def _guessed_course(reader: RunReader) -> Course | None:
    ratio, logged = logged_over_mean(reader), loss_course(reader)
    if ratio is not None and ratio > 0 and logged is not None:
        return logged if abs(ratio - 1) < SAME else course_of(logged.steps, logged.values / ratio, logged.probe)
    chance = chance_of(reader)
    if chance is not None and chance.function == BY_HAND:
        return logged
    found = objective_mean(reader)
    if len(found.finite) < FEWEST:
        return None
    return course_of(found.steps, found.values, found.probe, Objective.objective_mean.name)


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
    course: Course | None
    """Of the loss of one target; None if it cannot be held against chance."""
    accuracy: Accuracy | None
    fell: bool = False
    """Whether the trained loss has lost most of its start: classes that weigh more are learned before accuracy says
    so, or at its cost."""

    @property
    def better(self) -> bool | None:
        """Whether it ever was surely better than guessing; None if nothing tells."""
        answers = []
        if self.course is not None and self.chance.loss is not None:
            best = self.course.best
            below = Level(self.chance.loss, 0.0, 0, 0, 1).above(best)
            answers.append(below > SURE and best.value < AT_CHANCE[0] * self.chance.loss)
        if self.accuracy is not None and self.chance.accuracy is not None:
            gap = self.accuracy.value - self.chance.accuracy
            answers.append(self.accuracy.above(self.chance.accuracy) > SURE and gap > BETTER)
        return any(answers) if answers else None

    @property
    def at_chance(self) -> bool:
        """Whether it ended where guessing does, and was no longer on its way.

        A loss that is far from there may be weighted, smoothed, or not yet begun to fall: that says nothing.
        """
        if self.better is not False:
            return False
        by_loss = self.loss_at_chance
        return self.accuracy is not None and not self.fell if by_loss is None else by_loss

    @property
    def loss_at_chance(self) -> bool | None:
        """The same by the loss alone; None if it cannot be held against chance."""
        if self.course is None or self.chance.loss is None:
            return None
        low, high = AT_CHANCE
        end, half = self.course.end, self.course.levels[len(self.course.levels) // 2]
        moving = half.above(end) > SURE and half.value - end.value > 0.01 * abs(half.value)
        return low * self.chance.loss <= end.value + end.error and end.value <= high * self.chance.loss and not moving

    @property
    def starts_high(self) -> float | None:
        """The first loss, before any step, in units of that of a model that knows nothing: all classes alike, or 0."""
        if self.course is None or self.chance.loss is None:
            return None
        even = self.chance.at_zero if self.chance.numbers else math.log(max(self._answers, 2))
        return float(self.course.values[0]) / max(self.chance.loss, even)

    @property
    def _answers(self) -> int:
        return 2 if self.chance.function.startswith("binary") else self.chance.classes or 2


def guessing(reader: RunReader) -> Guessing | None:
    """None if what guessing would reach is not known."""
    run = one_pass(reader)
    return run.remember("guessing", lambda: _guessing(run))


def _guessing(reader: RunReader) -> Guessing | None:
    chance = chance_of(reader)
    if chance is None:
        return None
    course = guessed_course(reader) if chance.loss is not None else None
    accuracy = training_accuracy(reader) if chance.accuracy is not None else None
    trained = loss_course(reader)
    fell = trained is not None and trained.improved and trained.gained_share > MOST
    return None if course is None and accuracy is None else Guessing(chance, course, accuracy, fell)
