"""Training data beside the holdout: examples in both, other scales, running statistics that do not fit, duplicates."""

from __future__ import annotations

import math

import numpy as np

from learnscope.findings import analysis, no_held_out
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.held_out.first_sight import differs_at_first_sight
from learnscope.findings.outputs.held_out.gap_at_once import apart_at_once
from learnscope.findings.outputs.held_out.same_rows import same_rows
from learnscope.findings.outputs.held_out.worse_on_holdout import WORSE_ON_HOLDOUT, gap
from learnscope.quantities import Quantity
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.chance import guessing
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.words import count, num, percent
from learnscope.record import Evidence, Finding, Severity
from learnscope.store.reader import RunReader


def _evidence(found: Series, quantity: Quantity, value: float) -> Evidence:
    return evidence_over((int(found.steps[0]), int(found.steps[-1])), found.probe, quantity, len(found), value)


@analysis(place=25, check="training examples in the holdout", needs=[Inputs.holdout_overlap], unless=no_held_out)
def overlap(reader: RunReader, cuts: Cuts) -> list[Finding]:
    if no_held_out(reader) is not None:
        return []
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
def holdout_differs(reader: RunReader, cuts: Cuts) -> list[Finding]:
    ours, theirs = (
        {q.name: _median(series(reader, q, data=data)) for q in (Inputs.input_mean, Inputs.input_std)}
        for data in ("train", "holdout")
    )
    width, other = ours[Inputs.input_std.name], theirs[Inputs.input_std.name]
    level, mean = ours[Inputs.input_mean.name], theirs[Inputs.input_mean.name]
    if not width or other is None or level is None or mean is None:
        return _of_another_kind(reader, cuts)
    ratio, shift = other / width, abs(mean - level) / max(width, 1e-300)
    if 1 / cuts.other_scale < ratio < cuts.other_scale and shift < cuts.other_level:
        return _of_another_kind(reader, cuts)
    found, times = series(reader, Inputs.input_std, data="train").finite, gap(reader)
    worse = (
        f" The holdout loss is {num(times)} times the training loss."
        if times is not None and times > cuts.worse_holdout
        else ""
    )
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


def _of_another_kind(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Inputs of one scale, or tokens: the surest sign first, and symptoms where there is none."""
    signs = _other_labels(reader) or _not_followed(reader, cuts) or differs_at_first_sight(reader, cuts)
    return signs or apart_at_once(reader, cuts) or _never_better(reader, cuts)


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


def _not_followed(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A holdout loss that hardly moves while the training loss falls: what is evaluated is not what is trained."""
    held, course = held_out_loss(reader), loss_course(reader)
    losses = held.series.finite
    if course is None or held.stand_in is not None or len(losses) < cuts.holdout_measurements or not course.improved:
        return []
    first, spread = float(losses.values[0]), float(losses.values.max() - losses.values.min())
    if first <= 0 or first < course.start.value / 2:  # it was learned before the run began
        return []
    if spread > cuts.holdout_still * first or course.end.value > cuts.plateau_share * course.start.value:
        return []
    return [
        Finding(
            kind="holdout_differs",
            severity="warning",
            title=f"What is evaluated does not follow the training: a holdout loss of {num(first)} throughout",
            detail=f"It changed by {percent(spread / first)} in {count(len(losses), 'measurement')}, while the "
            f"training loss went from {num(course.start.value)} to {num(course.end.value)}. A model that learns by "
            "heart gets worse on the holdout, and one that learns gets better: the one that is evaluated does neither.",
            advice="Look at which weights are evaluated: an average of the weights with a decay that is too slow for "
            "the length of the run, a copy, a checkpoint, or parts that are switched in eval mode.",
            evidence=_evidence(losses, Holdout.holdout_loss, float(losses.values[-1])),
            cause=True,
            explains=WORSE_ON_HOLDOUT[:-1],
            since=int(losses.steps[1]),
        )
    ]


def _never_better(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A training loss that is almost gone beside a holdout loss that never got better: a symptom, of several causes."""
    held, course = held_out_loss(reader), loss_course(reader)
    losses = held.series.finite
    if course is None or held.stand_in is not None or len(losses) < cuts.holdout_measurements or not course.improved:
        return []
    first, best = float(losses.values[0]), float(losses.values.min())
    rises = float(losses.values[-1]) > (1 + cuts.overfitting_critical) * first  # which is said elsewhere
    if first <= 0 or first < course.start.value / 2:  # it was learned before the run began
        return []
    if best < (1 - cuts.holdout_still) * first or course.end.value > cuts.plateau_rest * course.start.value or rises:
        return []
    return [
        Finding(
            kind="not_generalising",
            severity="warning",
            title=f"What is learned does not help on the holdout: {num(float(losses.values[-1]))}, from {num(first)}",
            detail=f"The holdout loss was {num(best)} at its best in {count(len(losses), 'measurement')} and "
            f"{num(first)} at first, while the training loss went from {num(course.start.value)} to "
            f"{num(course.end.value)}.",
            advice="Look for something in the training inputs that gives the target away and is not there in the "
            "holdout (a column that is filled in afterwards, an id, a file name), for a holdout that is prepared "
            "otherwise, and for too few examples.",
            evidence=_evidence(losses, Holdout.holdout_loss, float(losses.values[-1])),
            since=int(losses.steps[1]),
        )
    ]


def _follows(reader: RunReader) -> bool:
    """Whether most of the holdout was learned as well: a few examples were enough."""
    values = held_out_loss(reader).series.finite.values
    return bool(len(values)) and float(values[-1]) <= 0.2 * float(values[0])


@analysis(place=28, check="duplicates in the training data", needs=[Inputs.duplicate_share], at_least="measurements")
def duplicates(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A candidate: what is bad for the holdout is that there are few different examples, however they are drawn.

    Drawing with replacement gives such rows too, and does no harm by itself: it is an alarm only where the holdout got
    worse.
    """
    found = series(reader, Inputs.duplicate_share).finite
    if len(found) < cuts.measurements:
        return []
    share, times = float(np.median(found.values)), gap(reader)
    if share < cuts.duplicate_share:
        return same_rows(reader, cuts)
    severity: Severity = (
        "warning" if times is not None and times > cuts.worse_holdout and not _follows(reader) else "info"
    )
    beside = f" The holdout loss is {num(times)} times the training loss." if times is not None else ""
    return [
        Finding(
            kind="duplicated_data",
            severity=severity,
            title=f"Training sees few different examples: {percent(share)} of the rows had been seen before in the "
            "same step or epoch",
            detail=f"By content, bit for bit (median of {count(len(found), 'measurement')}). It is that there are few "
            f"different ones that makes a model memorise them, not how often each is drawn.{beside}",
            advice="Look for files that were joined twice or a subset that was left from debugging, and train on more "
            "different examples. A sampler that draws with replacement is sound by itself.",
            evidence=_evidence(found, Inputs.duplicate_share, share),
            cause=True,
            explains=("overfitting", "worsening", "memorised", "not_generalising", "holdout_overlap"),
            alternatives=["Inputs of which only a few different ones exist: nothing is wrong then."],
            since=int(found.steps[0]),
        )
    ]  # fmt: skip
