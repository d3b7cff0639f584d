"""Holdout loss against training loss: has the model gone past its best on data it does not train on?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.outputs.stuck import guessing_run
from learnscope.intervals import ratio_interval
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Series, labels_of, series
from learnscope.reading.held_out import HeldOutLoss, held_out_loss
from learnscope.reading.words import count, num, percent
from learnscope.record import Evidence, Finding, Severity
from learnscope.store.backend import RunError
from learnscope.store.reader import RunReader

RESAMPLES = 2000
SMALL = 5_000
"""Examples up to which the interval is bootstrapped; beyond, the mean is normal for all purposes."""


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences with a 95 % interval."""

    mean: float
    interval: tuple[float, float] | None
    n: int
    how: str
    """How the interval was computed, or why there is none."""
    dropped: int = 0


@dataclass(frozen=True)
class TrainingLoss:
    """Its means up to the best step and up to the last, over windows of `n` values each."""

    before: float
    after: float
    n: tuple[int, int]


@analysis(place=60, check="overfitting", needs=[Holdout.holdout_loss], at_least="holdout_measurements")
def overfitting(reader: RunReader, cuts: Cuts) -> list[Finding]:
    findings = []
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
    if at >= len(losses) - 2 or rises.min() < cuts.overfitting_rise:
        return []
    paired = _paired(reader, label, best, last)
    if paired is not None and (paired.mean if paired.interval is None else paired.interval[0]) <= 0:
        return []
    if held_out.stand_in is not None:
        return [_unjudged(label, held_out, at, float(rises[-1]), paired)]
    return [_finding(reader, label, losses, at, float(rises[-1]), paired, _training(reader, best, last), cuts)]


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
            f"step {last:,}. {_paired_sentence(paired)} {held_out.note}"
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
    diverging = training is not None and training.after >= training.before
    sure = paired is not None and paired.interval is not None
    strong = sure and training is not None and not only_confidence
    severity: Severity = "critical" if strong and rise >= cuts.overfitting_critical else "warning"
    what = "Holdout and training loss rise together" if diverging else "Overfitting"
    n = len(losses)
    return Finding(
        kind="worsening" if diverging else "overfitting",
        severity=severity,
        title=f"{what}: holdout loss {percent(rise)} above its best, which was at step {best:,}",
        detail=" ".join(
            [
                f"The holdout loss was {num(lowest)} at step {best:,}, the lowest of {n:,} measurements, and "
                f"{num(now)} at step {last:,}.",
                _paired_sentence(paired),
                _training_sentence(training, best, last),
                accuracy,
            ]
        ).strip(),
        advice=_advice(best, diverging, only_confidence, training, guessing=guessing_run(reader, cuts) is not None),
        evidence=_evidence(label, losses, at, paired),
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


def _paired_sentence(paired: Difference | None) -> str:
    if paired is None:
        return "No losses per example were kept at both steps, so there is no interval: this is weaker evidence."
    lost = f"; {count(paired.dropped, 'example')} without a finite loss left out" if paired.dropped else ""
    rise = f"Paired by example the rise is {num(paired.mean)}"
    if paired.interval is None:
        return f"{rise}, without an interval ({paired.how}{lost}): this is weaker evidence."
    low, high = paired.interval
    return f"{rise} (95 % interval {num(low)} to {num(high)}, {paired.how} over n = {paired.n:,} examples{lost})."


def _training_sentence(training: TrainingLoss | None, best: int, last: int) -> str:
    if training is None:
        return f"The training loss between steps {best:,} and {last:,} was not recorded: this is weaker evidence."
    went = "fell" if training.after < training.before else "rose" if training.after > training.before else "stayed"
    return (
        f"Meanwhile the training loss {went} from {num(training.before)} to {num(training.after)} (means of "
        f"{training.n[0]:,} and {training.n[1]:,} values up to those steps)."
    )


def _training(reader: RunReader, best: int, last: int) -> TrainingLoss | None:
    """Over windows that do not meet; None if one has fewer than two values."""
    loss = series(reader, Loss.loss).finite
    width = (last - best) / 2
    windows = [loss.values[(loss.steps > end - width) & (loss.steps <= end)] for end in (best, last)]
    if min(len(window) for window in windows) < 2:
        return None
    before, after = (float(window.mean()) for window in windows)
    return TrainingLoss(before, after, (len(windows[0]), len(windows[1])))


def _paired(reader: RunReader, label: str, best: int, last: int) -> Difference | None:
    """The rise of each example's own loss; None unless both steps kept them for two examples at least."""
    ids, means = [], []
    for step in (best, last):
        try:
            arrays = reader.arrays(label, step)
            losses, examples = arrays["losses"], arrays["example"]
        except (KeyError, RunError):  # nothing was kept, or its file is gone
            return None
        # the mean over each example's positions: long examples must not count for more
        unique, where = np.unique(examples.reshape(-1), return_inverse=True)
        sums = np.bincount(where, weights=losses.reshape(-1).astype(np.float64))
        ids.append(unique)
        means.append(sums / np.bincount(where))
    _, first, second = np.intersect1d(ids[0], ids[1], assume_unique=True, return_indices=True)
    differences = means[1][second] - means[0][first]
    finite = differences[np.isfinite(differences)]
    return paired_interval(finite, dropped=len(differences) - len(finite)) if len(finite) >= 2 else None


def paired_interval(differences: Floats, dropped: int = 0) -> Difference:
    """Mean and 95 % interval of paired differences, over examples.

    By `ratio_interval`, so that the same data always gives the same interval; for very many examples
    mean ± 1.96 s/√n, which is then the same to within rounding.
    """
    n, mean = len(differences), float(differences.mean())
    if n > SMALL:
        half = 1.96 * float(differences.std(ddof=1)) / n**0.5
        return Difference(mean, (mean - half, mean + half), n, "normal approximation", dropped)
    low, high, reason = ratio_interval(differences, np.ones(n), resamples=RESAMPLES)
    if reason is not None:
        return Difference(mean, None, n, reason, dropped)
    return Difference(mean, (low, high), n, f"studentised bootstrap of {RESAMPLES:,}", dropped)
