"""Holdout loss against training loss: has the model gone past its best on data it does not train on?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis, no_held_out
from learnscope.findings.outputs.held_out.apart import FELL, apart
from learnscope.findings.outputs.held_out.running_statistics import stale_norms
from learnscope.findings.outputs.paired import Difference, paired_rise, paired_sentence
from learnscope.findings.outputs.stuck import guessing_run
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.reading.course.events import Spike, spikes
from learnscope.reading.course.loss_course import MEDIAN_ERROR, SURE, loss_course, noise_between, noise_of, rising
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, labels_of, series
from learnscope.reading.held_out import HeldOutLoss, held_out_loss
from learnscope.reading.proportions import Share
from learnscope.reading.words import listed, num, percent
from learnscope.record import Evidence, Finding, Severity
from learnscope.store.reader import RunReader

CLOSE = 2.0
"""Times the training loss up to which the best holdout loss shows that the same thing was learned."""
EASIER = 0.9
"""The same share below which the holdout was easier than the training data at that time, as without wrong labels."""
WRONG_LABELS = (
    "Wrong labels among the training data, which are memorised in the end: at its best the holdout had a lower "
    "loss than the training. An ExampleLedger tells which they are. Dropout and augmentation look the same."
)
NEVER = (
    "Overfitting comes after learning, and on the holdout there was none. Check that holdout and training data are of "
    "one kind: inputs prepared alike, classes and tokens numbered alike, and the loss computed alike; and that what is "
    "trained is what is meant."
)


@dataclass(frozen=True)
class TrainingLoss:
    """Its medians up to the best step and up to the last, over windows of `n` values each."""

    before: float
    after: float
    n: tuple[int, int]


FEWEST_FOR_NOISE, SHORTEST_RISE = 6, 3
"""Measurements from which it can be told how much the holdout loss varies from one to the next, and how many must come
after the best."""
STEADY = 1.5
"""Standard deviations of the trend statistic from which values rise one after the other: all three of three, or most
of many."""
LUCK = 2.0
"""Standard deviations by which the lowest of a few dozen values lies below their level."""


@analysis(
    place=60, check="overfitting", needs=[Holdout.holdout_loss], at_least="holdout_measurements", unless=no_held_out
)
def overfitting(reader: RunReader, cuts: Cuts) -> list[Finding]:
    findings: list[Finding] = []
    if no_held_out(reader) is not None:
        return findings
    for label in labels_of(reader, Holdout):
        held_out = held_out_loss(reader, label)
        if len(held_out.series.finite) >= cuts.holdout_measurements:
            findings += _judge(reader, label, held_out, cuts)
    return findings


def _judge(reader: RunReader, label: str, held_out: HeldOutLoss, cuts: Cuts) -> list[Finding]:
    losses = held_out.series.finite
    at = int(losses.values.argmin())
    best, last = int(losses.steps[at]), int(losses.steps[-1])
    lowest = float(losses.values[at])
    # one bad evaluation at the very end is not a trend: the one before it must lie above the cut too
    rises = (losses.values[-2:] - lowest) / abs(lowest) if lowest else np.full(2, np.inf)
    risen = at < len(losses) - 2 and rises.min() >= cuts.overfitting_rise and _beyond_noise(losses, at)
    paired = paired_rise(reader, label, best, last) if risen else None
    if not risen or (paired and (paired.mean if paired.interval is None else paired.interval[0]) <= 0):
        return [] if held_out.stand_in is not None else apart(reader, label, losses, cuts)
    if held_out.stand_in is not None:
        return [_unjudged(label, held_out, at, float(rises[-1]), paired)]
    if stale := stale_norms(reader, cuts):
        return [_stale(label, losses, at, float(rises[-1]), list(stale), cuts)]
    return [_finding(reader, label, losses, at, float(rises[-1]), paired, _training(reader, best, last), cuts)]


def _beyond_noise(losses: Series, at: int) -> bool:
    """Whether the end lies above the best by more than the holdout loss goes up and down between measurements.

    The end is the median of the last third since the best, at least of two values. The lowest of many values is low by
    luck as well. The noise is that around the best, also before it as far as it is no higher there, since of few values
    little is known; or, for values that rise one after the other, the lower of two estimates since the best, each of
    which is too large for a course that it does not fit (unequal distances, a bend). Of fewer than six values, nothing
    is known. Of white noise, 4 in 100 courses pass.
    """
    if len(losses) < FEWEST_FOR_NOISE:
        return True
    steps, values = losses.steps, losses.values
    after = values[at:]
    if len(after) <= SHORTEST_RISE:
        return False
    around = at
    while around and values[around - 1] <= after.max():
        around -= 1
    noises = [noise_between(steps[around:], values[around:])]
    if rising(after[1:]) > STEADY:
        noises += [noise_of(after), noise_between(steps[at:], after)]
    tail = after[-max(2, len(after) // 3) :]
    luck = SURE * MEDIAN_ERROR / math.sqrt(len(tail)) + LUCK
    return float(np.median(tail) - after[0]) > luck * min(noises)


def _stale(label: str, losses: Series, at: int, rise: float, layers: list[str], cuts: Cuts) -> Finding:
    """In eval mode another model is measured than the one that is trained."""
    best, last = int(losses.steps[at]), int(losses.steps[-1])
    return Finding(
        kind="worsening",
        severity="warning",
        title=f"The holdout loss is {percent(rise)} above its best, with running statistics that do not fit",
        detail=f"It was {num(float(losses.values[at]))} at step {best:,} and {num(float(losses.values[-1]))} at step "
        f"{last:,}. In eval mode {listed(layers, cuts.names_listed)} (batch normalisation) computes from running "
        "statistics that are far from those of the training batches, so this says nothing about overfitting.",
        advice="Mend the running statistics first: the layers' momentum, layers left in eval mode while training, or "
        "statistics that were never updated or loaded. Then measure again.",
        evidence=_evidence(label, losses, at, None),
        scopes=layers,
        since=int(losses.steps[at + 1]),
    )


def _unjudged(label: str, held_out: HeldOutLoss, at: int, rise: float, paired: Difference | None) -> Finding:
    """A rise of another loss than the one that is trained: whether it is overfitting cannot be told."""
    losses = held_out.series.finite
    best, last = int(losses.steps[at]), int(losses.steps[-1])
    lowest, now = float(losses.values[at]), float(losses.values[-1])
    return Finding(
        kind="worsening",
        severity="info",
        title=f"The {held_out.stand_in} on the holdout is {percent(rise)} above its best, which was at step {best:,}",
        detail=(
            f"It was {num(lowest)} at step {best:,}, the lowest of {len(losses):,} measurements, and {num(now)} at "
            f"step {last:,}. {paired_sentence(paired)} {held_out.note}"
        ),
        advice=(
            "Pass the loss that the loop trains with, ls.watch(…, loss=…): only then can overfitting be told from "
            "outputs that grow with training."
        ),
        evidence=_evidence(label, losses, at, paired),
    )


def _evidence(label: str, losses: Series, at: int, paired: Difference | None) -> Evidence:
    best, last = int(losses.steps[at]), int(losses.steps[-1])
    risen = float(losses.values[-1]) - float(losses.values[at])
    return Evidence(
        probe=label, name=Holdout.holdout_loss.name, n=paired.n if paired else len(losses), first_step=best,
        last_step=last, value=paired.mean if paired else risen, interval=paired.interval if paired else None,
    )  # fmt: skip


def _finding(
    reader: RunReader, label: str, losses: Series, at: int, rise: float,
    paired: Difference | None, training: TrainingLoss | None, cuts: Cuts,
) -> Finding:  # fmt: skip
    best, last = int(losses.steps[at]), int(losses.steps[-1])
    lowest, now = float(losses.values[at]), float(losses.values[-1])
    accuracies = series(reader, Holdout.holdout_accuracy, probe=label)
    before, after = accuracies.at(best), accuracies.at(last)
    accuracy, only_confidence = "", False
    if before is not None and after is not None:
        accuracy = f"Holdout accuracy went from {percent(before)} to {percent(after)}."
        only_confidence = after >= before
    spike = _spike(reader, losses, at)
    diverging = training is not None and (spike is not None or training.after >= training.before)
    sure = paired is not None and paired.interval is not None
    strong = sure and training is not None and not only_confidence
    severity: Severity = "critical" if strong and rise >= cuts.overfitting_critical else "warning"
    never = never_fell(losses, at)
    if _hardly_lost(reader, label, losses, at, cuts) and training is not None and training.after < training.before:
        severity = "info"
    what = "Holdout and training loss rise together" if diverging else "Overfitting"
    if never and not diverging:
        what = "The holdout has hardly got better at all"
    n = len(losses)
    return Finding(
        kind="worsening" if diverging or never else "overfitting",
        severity=severity,
        title=f"{what}: holdout loss {percent(rise)} above its best, which was at step {best:,}",
        detail=" ".join(
            [
                f"The holdout loss was {num(lowest)} at step {best:,}, the lowest of {n:,} measurements, and "
                f"{num(now)} at step {last:,}.",
                paired_sentence(paired),
                _training_sentence(training, best, last),
                accuracy,
            ]
        ).strip(),
        advice=_after_a_spike(best, spike)
        if spike is not None
        else NEVER
        if never and not diverging
        else _advice(best, diverging, only_confidence, training, guessing=guessing_run(reader, cuts) is not None),
        evidence=_evidence(label, losses, at, paired),
        # a model that fits the holdout as it fits the training data, and then no longer
        cause=not diverging and not never and training is not None and _alike(lowest, training),
        alternatives=[WRONG_LABELS] if training is not None and 0 < lowest < EASIER * training.before else [],
        since=int(losses.steps[at + 1]),
    )


def _alike(lowest: float, training: TrainingLoss) -> bool:
    return EASIER * training.before <= lowest <= CLOSE * training.before


def never_fell(losses: Series, at: int) -> bool:
    """Whether the best holdout loss is hardly below the first: what is learned was never any use there."""
    first, lowest = float(losses.values[0]), float(losses.values[at])
    return first - lowest < FELL * abs(first)


def _hardly_lost(reader: RunReader, label: str, losses: Series, at: int, cuts: Cuts) -> bool:
    """Whether most of what was gained on the holdout is kept, and nine of ten are right as before.

    A classifier that is trained until it is sure pays for each mistake, and is as useful as it was at its best.
    """
    first, lowest, now = (float(losses.values[place]) for place in (0, at, -1))
    right = series(reader, Holdout.holdout_accuracy, probe=label)
    n = series(reader, Holdout.holdout_examples, probe=label).finite.values
    before, after = right.at(int(losses.steps[at])), right.at(int(losses.steps[-1]))
    if before is None or after is None or not len(n) or after < cuts.well_learned:
        return False
    fewer = (Share(before, int(n[-1])) - Share(after, int(n[-1])))[0] > 0
    return now - lowest < cuts.lost_share * (first - lowest) and not fewer


def _spike(reader: RunReader, losses: Series, at: int) -> Spike | None:
    """A spike of the training loss between the best measurement and the next: what worsened began with it."""
    course = loss_course(reader)
    best, after = int(losses.steps[at]), int(losses.steps[at + 1])
    found = [] if course is None else [spike for spike in spikes(course) if best < spike.step <= after]
    return found[0] if found else None


def _after_a_spike(best: int, spike: Spike) -> str:
    return (
        f"The training loss jumped from {num(spike.level)} to {num(spike.value)} at step {spike.step:,}, and the "
        f"holdout has been worse since: look at the batch of that step first, then go on from the checkpoint of step "
        f"{best:,} without it."
    )


def _advice(best: int, diverging: bool, only_confidence: bool, training: TrainingLoss | None, *, guessing: bool) -> str:
    if guessing:
        return (
            f"Step {best:,} is no way out: by its accuracy on the holdout the model only guesses, then as now. Find "
            "out why nothing that it learns carries over."
        )
    if diverging:
        return (
            f"Both losses rise, so this is the optimisation, not the data: go back to the checkpoint of step {best:,} "
            "with a lower learning rate."
        )
    if only_confidence:
        return (
            "Accuracy has not fallen, so the loss rises by confidence in the wrong answers rather than by more of "
            f"them: if accuracy is what counts, go on; if probabilities are used, take step {best:,} or calibrate "
            "(label smoothing, a temperature)."
        )
    hint = "" if training is not None else "Log the training loss to tell overfitting from divergence. "
    return (
        f"{hint}Take the checkpoint of step {best:,}, or stop there next time; to train longer, use more data, "
        "augmentation, weight decay or dropout."
    )


def _training_sentence(training: TrainingLoss | None, best: int, last: int) -> str:
    if training is None:
        return f"The training loss between steps {best:,} and {last:,} was not recorded: this is weaker evidence."
    went = "fell" if training.after < training.before else "rose" if training.after > training.before else "stayed"
    return (
        f"Meanwhile the training loss {went} from {num(training.before)} to {num(training.after)} (medians of "
        f"{training.n[0]:,} and {training.n[1]:,} values up to those steps)."
    )


def _training(reader: RunReader, best: int, last: int) -> TrainingLoss | None:
    """Over windows that do not meet; None if one has fewer than two values."""
    loss = series(reader, Loss.loss).finite
    width = (last - best) / 2
    windows = [loss.values[(loss.steps > end - width) & (loss.steps <= end)] for end in (best, last)]
    if min(len(window) for window in windows) < 2:
        return None
    before, after = (float(np.median(window)) for window in windows)  # one bad batch must not move them
    return TrainingLoss(before, after, (len(windows[0]), len(windows[1])))
