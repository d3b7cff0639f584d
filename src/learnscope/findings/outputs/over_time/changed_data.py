"""Data that change while a model is trained: inputs or targets of another scale, rows that are all new at once."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities import Quantity
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Loss, Objective
from learnscope.reading.course.batches import AFTER, BEFORE, Change, level_change, outlying, scale_change, target_sizes
from learnscope.reading.course.loss_course import MEDIAN_ERROR, SURE, Course, loss_course, noise_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding, Severity
from learnscope.store.reader import RunReader

EXPLAINED = (
    "loss_spike", "bad_batch", "diverging", "worsening", "overfitting", "learning_rate_too_high", "exploding",
    "nonfinite", "holdout_differs", "stale_batch_norm", "not_generalising", "plateau", "dead_units", "label_noise",
)  # fmt: skip
"""What data of another kind lead to from the step on at which they come."""
OTHER_LEVEL = 0.3
"""Standard deviations of the inputs between the levels of batches from which they are of another kind."""
NEW, KNOWN = 0.1, 0.9
"""Share of rows seen before, below which a batch is new, and from which those before it were not."""
AROUND = 40
"""Losses on each side of a change that are held against each other."""


@analysis(place=19, check="inputs of one scale throughout", needs=[Inputs.input_std], at_least=BEFORE + AFTER)
def changed_inputs(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Inputs whose scale is another from one step on, or in some batches."""
    spread = series(reader, Inputs.input_std, data="train").finite
    if (change := scale_change(spread, cuts.other_scale)) is not None:
        return [_changed(reader, spread, change, "inputs", Inputs.input_std, "unscaled_inputs")]
    level = series(reader, Inputs.input_mean, data="train").finite
    usual = float(np.median(spread.values)) if len(spread) else 0.0
    if usual and (moved := level_change(level, OTHER_LEVEL * usual)) is not None:
        return [_moved(reader, level, moved, usual)]
    far = outlying(spread, cuts.outlying_batch)
    return [] if far is None else [_some(spread, far, "inputs", Inputs.input_std, "unscaled_inputs")]


def _moved(reader: RunReader, found: Series, change: Change, usual: float) -> Finding:
    """Inputs of another level from one step on: another part of the data, or prepared otherwise."""
    course, ends = loss_course(reader), (int(found.steps[0]), int(found.steps[-1]))
    last = int(found.steps[found.steps < change.step][-1])
    risen = None if course is None else _risen(course, last, change.step)
    beside = "" if risen is None else f" The loss was {num(risen[0])} before and {num(risen[1])} after it (medians)."
    return Finding(
        kind="sorted_data",
        severity="warning" if risen is not None else "info",
        title=f"The data come in parts that differ: inputs are around {num(change.before)} up to step {last:,} and "
        f"around {num(change.after)} since",
        detail=f"The means of batches lie {num(abs(change.after - change.before) / usual)} standard deviations of the "
        f"inputs apart, and none lies in between ({count(change.n[0], 'measurement')} before, "
        f"{count(change.n[1], 'measurement')} after, {between(*ends)}).{beside} What was learned of the first part is "
        "lost on the second, unless both are mixed.",
        advice="Look at what is read from that step on: another file, source or unit, negatives, a normalisation that "
        "is left out. If both parts are right, shuffle across them.",
        evidence=evidence_over(ends, found.probe, Inputs.input_mean, len(found), change.after),
        cause=True,
        explains=EXPLAINED,
        ruled_out=["A step that was too large: the data changed before the weights saw them."],
        since=change.step,
    )


@analysis(place=19, check="targets of one scale throughout", needs=[Objective.target_std], at_least=BEFORE + AFTER)
def changed_targets(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """The same of targets that are numbers."""
    sizes = target_sizes(reader)
    if sizes is None:
        return []
    if (change := scale_change(sizes, cuts.other_scale)) is not None:
        return [_changed(reader, sizes, change, "targets", Objective.target_std, "targets_out_of_range")]
    far = outlying(sizes, cuts.outlying_batch)
    return [] if far is None else [_some(sizes, far, "targets", Objective.target_std, "targets_out_of_range")]


def _changed(reader: RunReader, found: Series, change: Change, what: str, quantity: Quantity, kind: str) -> Finding:
    course = loss_course(reader)
    before = found.steps[found.steps < change.step]
    last, ends = int(before[-1]), (int(found.steps[0]), int(found.steps[-1]))
    risen = None if course is None else _risen(course, last, change.step)
    severity: Severity = "warning" if risen is not None else "info"
    larger = "larger" if abs(change.after) > abs(change.before) else "smaller"
    beside = "" if risen is None else f" The loss was {num(risen[0])} before and {num(risen[1])} after it (medians)."
    return Finding(
        kind=kind,
        severity=severity,
        title=f"The {what} change between steps {last:,} and {change.step:,}: {num(change.factor)} times {larger} "
        "since",
        detail=f"The {what} of a batch had a standard deviation of {num(change.before)} up to step {last:,} (median of "
        f"{count(change.n[0], 'measurement')}, all within a factor of 2), and {num(change.after)} from step "
        f"{change.step:,} on (of {count(change.n[1], 'measurement')}, {between(*ends)}).{beside}",
        advice=f"Look at what prepares the {what} and what happened to it at that step: another file or worker, a new "
        "epoch, a resume with other options, a normalisation that is left out or done twice, another unit.",
        evidence=evidence_over(ends, found.probe, quantity, len(found), change.after),
        cause=True,
        explains=EXPLAINED,
        ruled_out=["A step that was too large: the data changed before the weights saw them."],
        since=change.step,
    )


def _risen(course: Course, last: int, first: int) -> tuple[float, float] | None:
    """The loss before and after a change, if it is surely higher after it."""
    earlier = course.values[course.steps <= last][-AROUND:]
    later = course.values[course.steps >= first][:AROUND]
    if min(len(earlier), len(later)) < BEFORE:
        return None
    levels = float(np.median(earlier)), float(np.median(later))
    noise = max(noise_of(earlier), course.noise / 2)
    error = MEDIAN_ERROR * noise * (1 / len(earlier) + 1 / len(later)) ** 0.5
    return levels if levels[1] - levels[0] > SURE * error else None


def _some(found: Series, far: Change, what: str, quantity: Quantity, kind: str) -> Finding:
    """A candidate: numbers with heavy tails are no fault where they are learned."""
    ends, n = (int(found.steps[0]), int(found.steps[-1])), len(found)
    share = far.n[1] / n
    return Finding(
        kind=kind,
        severity="info",
        title=f"Some {what} are of another size: in {percent(share)} of the batches they are {num(far.factor)} times "
        "as "
        "large",
        detail=f"The {what} of a batch have a size of {num(far.before)} (median of {count(n, 'measurement')}, "
        f"{between(*ends)}), and of {num(far.after)} in {count(far.n[1], 'batch', 'batches')} of these, first at step "
        f"{far.step:,}. Such rows decide a loss of squares, and the steps.",
        advice=f"Look at the rows with the largest {what}: a decimal point or a separator that was read wrongly, "
        "another "
        "unit, a code for missing values. If they are right, take their logarithm or a loss that grows more slowly "
        "(Huber), and clip gradients.",
        evidence=evidence_over(ends, found.probe, quantity, n, far.after),
        cause=True,
        explains=(*EXPLAINED, "not_learning", "labels_unrelated", "exploding_initialisation"),
        since=ends[0],  # such batches come at any time, and every tenth was looked at
    )


@analysis(
    place=24, check="rows that are all new at once", needs=[Inputs.seen_share, Loss.loss], at_least=BEFORE + AFTER
)
def new_rows(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (shares of rows that are new need no cut)
    """A candidate: rows that had all come before, and from one step on none: one part of the data, then another."""
    seen = series(reader, Inputs.seen_share).finite
    place = next(
        (
            place for place in range(BEFORE, len(seen))
            if seen.values[place] <= NEW and (seen.values[place - 2 : place] >= KNOWN).all()
        ),
        None,
    )  # fmt: skip
    if place is None:
        return []
    step, ends = int(seen.steps[place]), (int(seen.steps[0]), int(seen.steps[-1]))
    last = int(seen.steps[place - 1])
    return [
        Finding(
            kind="sorted_data",
            severity="info",
            title=f"The data come in parts: rows that had all been seen until step {last:,}, and new ones from step "
            f"{step:,} on",
            detail=f"At step {last:,} {percent(float(seen.values[place - 1]))} of the rows had come at an earlier "
            f"looked-at step, and {percent(float(seen.values[place]))} at step {step:,} "
            f"({count(len(seen), 'measurement')}, {between(*ends)}): one part of the data is trained on over and over, "
            "and then another. What was learned of the first is lost on the second, unless both are mixed.",
            advice="Shuffle across the parts: shuffle=True over the joined data sets, or a sampler that draws from all "
            "of them. If they are meant to follow each other, keep some rows of the earlier ones.",
            evidence=evidence_over(ends, seen.probe, Inputs.seen_share, len(seen), float(seen.values[place])),
            cause=True,
            explains=EXPLAINED,
            since=step,
        )
    ]
