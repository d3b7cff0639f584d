"""Training data beside the holdout: examples in both, other scales, running statistics that do not fit, duplicates."""

from __future__ import annotations

import math

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.overfitting import stale_norms
from learnscope.quantities import Quantity
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.chance import guessing
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, Series, grid, series
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Evidence, Finding, Severity
from learnscope.store.reader import RunReader

OTHER_SCALE = 3.0
"""Ratio of the standard deviations of the inputs from which holdout and training are of different scales."""
OTHER_LEVEL = 1.0
"""Distance of their means, in standard deviations, from which the same is said."""
WORSE = 1.5
"""Holdout loss over training loss from which a holdout is bad."""
WORSE_ON_HOLDOUT = ("overfitting", "worsening", "not_generalising", "shortcut", "memorised", "holdout_differs")


def _evidence(found: Series, quantity: Quantity, value: float) -> Evidence:
    return evidence_over((int(found.steps[0]), int(found.steps[-1])), found.probe, quantity, len(found), value)


def gap(reader: RunReader) -> float | None:
    """The last holdout loss over the training loss at the end; None if they cannot be compared."""
    held, course = held_out_loss(reader), loss_course(reader)
    values = held.series.finite.values
    if held.stand_in is not None or not len(values) or course is None or course.end.value <= 0:
        return None
    return float(values[-1]) / course.end.value


@analysis(place=25, check="training examples in the holdout", needs=[Inputs.holdout_overlap])
def overlap(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found, rows = series(reader, Inputs.holdout_overlap).finite, series(reader, Inputs.rows)
    _, ours, theirs = np.intersect1d(found.steps, rows.steps, return_indices=True)
    looked = float(np.nan_to_num(rows.values[theirs]).sum())
    same = float((found.values[ours] * np.nan_to_num(rows.values[theirs])).sum())
    if same < cuts.measurements or not looked:
        return []
    share, first = same / looked, int(found.steps[np.argmax(found.values > 0)])
    return [
        Finding(
            kind="holdout_overlap",
            severity="warning" if share >= cuts.overlap_share else "info",
            title=f"{percent(share)} of the training rows looked at are in the holdout, bit for bit",
            detail=f"{num(same)} of {num(looked)} training rows at {count(len(found), 'looked-at step')} have the same "
            f"content as an example of the holdout, first at step {first:,}. What the holdout says of them is memory.",
            advice="Split by example (or by person, document or patient) before anything is repeated or augmented, and "
            "remove copies from the training data.",
            evidence=_evidence(found, Inputs.holdout_overlap, share),
            cause=True,
            since=first,
        )
    ]


@analysis(place=26, check="holdout like the training data", needs=[(Inputs.input_std, Inputs.token_max)])
def holdout_differs(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (cuts are here, with reasons)
    ours, theirs = (
        {q.name: _median(series(reader, q, data=data)) for q in (Inputs.input_mean, Inputs.input_std)}
        for data in ("train", "holdout")
    )
    width, other = ours[Inputs.input_std.name], theirs[Inputs.input_std.name]
    level, mean = ours[Inputs.input_mean.name], theirs[Inputs.input_mean.name]
    if not width or other is None or level is None or mean is None:
        return _other_labels(reader)
    ratio, shift = other / width, abs(mean - level) / max(width, 1e-300)
    if 1 / OTHER_SCALE < ratio < OTHER_SCALE and shift < OTHER_LEVEL:
        return _other_labels(reader)
    found, times = series(reader, Inputs.input_std, data="train").finite, gap(reader)
    worse = f" The holdout loss is {num(times)} times the training loss." if times is not None and times > WORSE else ""
    return [
        Finding(
            kind="holdout_differs",
            severity="warning",
            title=f"The holdout is of another scale: inputs of {num(mean)} ± {num(other)}, in training {num(level)} ± "
            f"{num(width)}",
            detail=f"The standard deviation of the holdout's inputs is {num(ratio)} times that of training, and the "
            "means "
            f"are {num(shift)} standard deviations apart (medians of {count(len(found), 'measurement')}).{worse} "
            "What is "
            "measured on it says nothing about the training.",
            advice="Prepare both in the same way: normalise the holdout once, with the numbers of the training data.",
            evidence=_evidence(found, Inputs.input_std, ratio),
            cause=True,
            explains=(*WORSE_ON_HOLDOUT, "stale_batch_norm"),
            ruled_out=["Overfitting: the holdout's inputs are not like those of training."],
            since=int(found.steps[0]),
        )
    ]


def _median(found: Series) -> float | None:
    values = found.finite.values
    return float(np.median(values)) if len(values) else None


def _other_labels(reader: RunReader) -> list[Finding]:
    """A model that is right on training targets and wrong on the holdout's more often than by guessing at random."""
    found, right = guessing(reader), series(reader, Holdout.holdout_accuracy).finite
    n = series(reader, Holdout.holdout_examples).finite.values
    if found is None or found.accuracy is None or not found.chance.classes or not len(right) or not len(n):
        return []
    even = 1 / max(found.chance.classes, 2)
    last = float(right.values[-3:].mean())
    error = math.sqrt(even * (1 - even) / float(n[-1]))
    if found.accuracy.value < 0.5 + even / 2 or last > even - 4 * error or even * float(n[-1]) < 5:
        return []
    return [
        Finding(
            kind="holdout_differs",
            severity="warning",
            title=f"The holdout's labels mean something else: {percent(last)} right, fewer than by guessing",
            detail=f"Of the training targets {percent(found.accuracy.value)} are right and of the holdout's "
            f"{percent(last)} (last {min(len(right), 3)} of {count(len(right), 'measurement')}, n = "
            f"{int(n[-1]):,}), where "
            f"guessing at random gives {percent(even)}. A model that has learned nothing of use would be at "
            f"{percent(even)}: "
            "being wrong more often takes knowledge, so it is the labels that differ.",
            advice="Compare how labels become numbers for training and holdout: classes sorted otherwise, another "
            "file of "
            "class names, counting from 1.",
            evidence=_evidence(right, Holdout.holdout_accuracy, last),
            cause=True,
            explains=WORSE_ON_HOLDOUT[:-1],
            since=int(right.steps[0]),
        )
    ]  # fmt: skip


@analysis(place=27, check="running statistics of batch norms", needs=[Inputs.norm_drift, Holdout.holdout_loss])
def stale(reader: RunReader, cuts: Cuts) -> list[Finding]:
    layers, times = stale_norms(reader, cuts), gap(reader)
    if not layers:
        return []
    drift = grid(reader, Inputs.norm_drift)
    worst = float(np.nanmax(drift.values[-1]))
    severity: Severity = "warning" if times is not None and times > WORSE else "info"
    beside = f" The holdout loss is {num(times)} times the training loss." if times is not None else ""
    steps = int(drift.steps[0]), int(drift.steps[-1])
    return [
        Finding(
            kind="stale_batch_norm",
            severity=severity,
            title=f"Running statistics of batch norm do not fit the batches: {listed(layers, cuts.names_listed)}",
            detail=f"In eval mode these layers normalise by a running mean that is up to {num(worst)} standard "
            "deviations "
            f"from that of the training batches, or by another variance ({count(len(drift.steps), 'measurement')}, "
            f"{between(*steps)}).{beside}",
            advice="Look at the layers' momentum (0 never updates, 0.1 is usual), at layers in eval mode while "
            "training, "
            "and at running statistics that were not loaded; or renew them over the training data before evaluating.",
            evidence=evidence_over(steps, drift.probe, Inputs.norm_drift, len(drift.steps), worst),
            scopes=layers,
            cause=True,
            explains=WORSE_ON_HOLDOUT,
            ruled_out=["Overfitting: another model is evaluated than the one that is trained."],
            since=_since(drift, cuts),
        )
    ]  # fmt: skip


def _since(drift: Grid, cuts: Cuts) -> int:
    """The first measurement from which on a running mean was stale."""
    steps = drift.steps
    fine = np.flatnonzero(~(np.nan_to_num(drift.values) > cuts.stale_mean).any(axis=1))
    place = min(int(fine[-1]) + 1, len(steps) - 1) if len(fine) else 0
    return int(steps[place])


@analysis(place=28, check="duplicates in the training data", needs=[Inputs.duplicate_share], at_least="measurements")
def duplicates(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A candidate unless the holdout is bad too: few different inputs may be all there are."""
    found = series(reader, Inputs.duplicate_share).finite
    if len(found) < cuts.measurements:
        return []
    share, times = float(np.median(found.values)), gap(reader)
    if share < cuts.duplicate_share:
        return []
    severity: Severity = "warning" if times is not None and times > WORSE else "info"
    beside = f" The holdout loss is {num(times)} times the training loss." if times is not None else ""
    return [
        Finding(
            kind="duplicated_data",
            severity=severity,
            title=f"{percent(share)} of the training rows had been seen before in the same step or epoch",
            detail=f"By content, bit for bit (median of {count(len(found), 'measurement')}): the data set holds few "
            f"different examples, many times.{beside}",
            advice="Remove copies before training: look for files that were joined twice, and for a sampler that draws "
            "with replacement from a few examples.",
            evidence=_evidence(found, Inputs.duplicate_share, share),
            cause=True,
            explains=("overfitting", "worsening", "memorised", "not_generalising", "holdout_overlap"),
            alternatives=["Inputs of which only a few different ones exist: nothing is wrong then."],
            since=int(found.steps[0]),
        )
    ]  # fmt: skip
