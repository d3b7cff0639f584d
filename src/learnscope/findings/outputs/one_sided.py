"""Batches of one class each, and losses that do not show what the predictions know."""

from __future__ import annotations

import math

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Loss, Objective
from learnscope.reading.course.batches import of_each_batch
from learnscope.reading.course.chance import guessing, last_of
from learnscope.reading.course.loss_course import FEWEST
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding, Severity
from learnscope.store.reader import RunReader

EXPLAINED = (
    "overfitting", "worsening", "not_generalising", "loss_spike", "bad_batch", "diverging", "majority_guess",
    "not_learning", "plateau", "learning_rate_too_high", "labels_unrelated", "shortcut", "memorised",
    "holdout_differs",
)  # fmt: skip
"""What data in an order lead to."""
ALIKE = 0.4
"""Deviation of the targets of a batch in units of all, below which they are much alike: of 8 examples that are drawn
at random, the median is 0.95."""
TURNS = 4
"""Times that the means of batches pass the middle: numbers that drift, as returns of a policy, do so once."""


@analysis(place=24, check="order of the training data", needs=[Objective.step_majority], at_least="measurements")
def sorted_data(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Every batch has one class, though there are several: the data are sorted, and not shuffled."""
    found, sizes = series(reader, Objective.step_majority).finite, series(reader, Objective.step_targets).finite
    overall, classes = last_of(reader, Objective.majority_share), last_of(reader, Objective.classes_seen)
    if len(found) < cuts.measurements or overall is None or classes is None or not len(sizes):
        return []
    share = float(np.median(found.values))
    if classes < 2 or share < cuts.one_class_share or float(np.median(sizes.values)) < cuts.batch_targets:
        return []
    if overall > cuts.one_class_share / 2 + 0.25:  # one class is most of the data
        return []
    guessed = guessing(reader)
    learned = guessed is not None and guessed.accuracy is not None and guessed.accuracy.value > cuts.well_learned
    severity: Severity = "warning" if not learned else "info"
    beside = (
        f" {percent(guessed.accuracy.value)} of the targets of the last batches were predicted right before their "
        "step: what was learned of the class before is in the way."
        if guessed is not None and guessed.accuracy and not learned
        else ""
    )
    steps = int(found.steps[0]), int(found.steps[-1])
    return [
        Finding(
            kind="sorted_data",
            severity=severity,
            title=f"Batches have one class each: {percent(share)} of the targets of a step, of {int(classes)} classes",
            detail=f"The largest class of a batch has {percent(share)} of its targets (median of "
            f"{count(len(found), 'measurement')}, {between(*steps)}), and {percent(overall)} of all targets so far: "
            f"the data come in the order of their classes.{beside}",
            advice="Shuffle the data: shuffle=True in the loader, or a random order of a file that is sorted.",
            evidence=evidence_over(steps, found.probe, Objective.step_majority, len(found), share),
            cause=True,
            explains=EXPLAINED,
            since=steps[0],
        )
    ]  # fmt: skip


@analysis(place=24, check="order of numbers as targets", needs=[Objective.target_mean, Objective.target_std])
def sorted_numbers(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A candidate: targets of a batch that are much alike, and batches that go through all of them again and again."""
    level, spread = series(reader, Objective.target_mean).finite, series(reader, Objective.target_std).finite
    if len(level) < 4 * cuts.measurements or len(level) != len(spread) or not spread.values[-1] > 0:
        return []
    means, inside = of_each_batch(level.values, spread.values)
    whole = float(spread.values[-1])
    within = float(np.median(inside)) / whole
    middle = (float(means.min()) + float(means.max())) / 2
    turns = int((np.diff((means > middle).astype(int)) != 0).sum())
    if not 1e-3 < within < ALIKE or turns < TURNS or float(means.std()) < (1 - ALIKE) * whole:
        return []
    steps = int(level.steps[0]), int(level.steps[-1])
    return [
        Finding(
            kind="sorted_data",
            severity="info",
            title=f"Targets of a batch are much alike: they differ by {percent(within)} of what all targets differ by",
            detail=f"The standard deviation within a batch is {num(within * whole)} (median of "
            f"{count(len(level), 'measurement')}, {between(*steps)}), that of all targets {num(whole)}, and the means "
            f"of the batches went through {num(float(means.min()))} to {num(float(means.max()))} and back, "
            f"{turns} times past the middle: the data come in the order of their targets.",
            advice="Shuffle the data: shuffle=True in the loader, or a random order of a file that is sorted.",
            evidence=evidence_over(steps, level.probe, Objective.target_std, len(level), within),
            cause=True,
            explains=EXPLAINED,
            since=steps[0],
        )
    ]


@analysis(
    place=22, check="loss against accuracy", needs=[Loss.loss, Objective.objective_accuracy], at_least=FEWEST // 3
)  # fmt: skip
def close_logits(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Predictions that are right, with a loss that stays where guessing is: the logits hardly differ."""
    found = guessing(reader)
    if found is None or found.course is None or found.accuracy is None or not found.chance.loss:
        return []
    right, course, chance = found.accuracy, found.course, found.chance.loss
    classes = max(found.chance.classes or 2, 2)
    if found.chance.function.startswith("binary") or right.value < max(0.5, 3 * (found.chance.accuracy or 0.0)):
        return []
    least = _calibrated(right.value, classes)
    levels = np.array([course.start.value, *(level.value for level in course.levels)])
    stays = bool((np.abs(levels / chance - 1) < cuts.stays_at_chance).all())
    if not stays or course.end.value < 2 * least:
        return []
    steps = right.first, right.last
    return [
        Finding(
            kind="temperature_too_high",
            severity="warning",
            title=f"Predictions are right and the loss does not show it: {percent(right.value)} right at a loss of "
            f"{num(course.end.value)}",
            detail=f"Guessing gives {num(chance)}, and the loss has been within {percent(cuts.stays_at_chance)} of "
            f"that all along, while {percent(right.value)} of the targets are predicted right ({between(*steps)}). "
            f"With probabilities that fit, the loss would be {num(least)} or less: the logits differ by too little for "
            "softmax to tell them apart, and gradients are small.",
            advice="Divide cosines by a temperature around 0.1 (or learn one); give the loss the outputs before any "
            "softmax or sigmoid, and look for a factor that makes logits small.",
            evidence=evidence_over(steps, course.probe, course.name, len(course), course.end.value),
            cause=True,
            explains=["not_learning", "plateau", "labels_unrelated", "learning_rate_too_low", "vanishing"],
            since=int(course.steps[0]),
        )
    ]


def _calibrated(right: float, classes: int) -> float:
    """The largest loss of probabilities that fit: `right` for the prediction, the rest spread evenly."""
    rest = 1 - right
    if rest <= 0:
        return 0.0
    return -(right * math.log(right) + rest * math.log(rest / max(classes - 1, 1)))
