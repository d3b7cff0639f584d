"""Training data that are fitted and a holdout that is not, also where the holdout loss has not risen."""

from __future__ import annotations

from learnscope.findings.outputs.held_out.running_statistics import stale_norms
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.proportions import Share
from learnscope.reading.words import num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

SAME_SCALE = 2.0
"""Factor within which training and holdout loss begin, if they are the same loss of the same kind of data."""
FELL = 0.05
"""Share of its first value by which a holdout loss must have fallen for anything learned to have carried over."""
LEARNED = 0.5
"""Share of its first value to which the training loss must have come down."""
HALF_LEARNED = 0.6
"""Share of its first loss by which a holdout without an accuracy has fallen where it was learned."""


def apart(reader: RunReader, label: str, losses: Series, cuts: Cuts) -> list[Finding]:
    """Nothing unless the training loss has fallen by far more of its first value than the holdout loss of its own.

    A holdout that never got better is no matter of overfitting: others say what it may be.
    """
    course = loss_course(reader)
    if course is None or not len(losses) or stale_norms(reader, cuts):
        return []
    first, last, began, ends = float(losses.values[0]), float(losses.values[-1]), course.start.value, course.end.value
    if min(first, last, began) <= 0 or ends < 0 or not 1 / SAME_SCALE <= began / first <= SAME_SCALE:
        return []
    gap = last / first - ends / began
    right = _accuracy(reader, label)
    fitted = 1 - last / first > HALF_LEARNED if right is None else right.interval[1] >= cuts.well_learned
    never = first - float(losses.values.min()) < FELL * first
    broken = course.broken > 0 or ends > LEARNED * began
    if gap < cuts.generalisation_gap or fitted or never or broken or not course.improved:
        return []
    step, lowest = int(losses.steps[-1]), int(losses.steps[losses.values.argmin()])
    accuracy = "" if right is None else f" Of the holdout, {right} are right."
    finding = Finding(
        kind="overfitting",
        severity="warning",
        title=f"Overfitting: the training loss is {num(ends)} and the holdout loss {num(last)}",
        detail=f"The training loss fell by {percent(1 - ends / began)} of its first value (from {num(began)} to "
        f"{num(ends)}, the median of the last {course.end.n:,} values), the holdout loss by "
        f"{percent(1 - last / first)} (from {num(first)} to {num(last)} at step {step:,}).{accuracy} It has not "
        f"risen beyond its noise above its best, which was at step {lowest:,}: stopping earlier would not have helped.",
        advice="What was learned holds for the training data alone: use more data, augmentation, weight decay, dropout "
        "or a smaller model, and check that holdout and training data are prepared alike.",
        evidence=Evidence(
            probe=label, name=Holdout.holdout_loss.name, n=len(losses), first_step=int(losses.steps[0]),
            last_step=step, value=gap,
        ),
    )  # fmt: skip
    return [finding]


def _accuracy(reader: RunReader, label: str) -> Share | None:
    """The last accuracy on the holdout; None for numbers."""
    right = series(reader, Holdout.holdout_accuracy, probe=label).finite.values
    n = series(reader, Holdout.holdout_examples, probe=label).finite.values
    return Share(float(right[-1]), int(n[-1])) if len(right) and len(n) else None
