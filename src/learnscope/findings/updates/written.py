"""Weights that something else than the optimizer has written, and what that did to the loss."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Loss
from learnscope.quantities.updates import LoopCalls
from learnscope.reading.course.loss_course import MEDIAN_ERROR, SURE, Course, loss_course, noise_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import between, count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

RARE = 0.2
"""Share of the steps up to which writing the weights is an event, and not how this loop trains."""
AROUND = 5
"""Losses on each side of a write that are held against each other."""
MUCH = 0.1
"""Share of what the loss had gained by then, that it has to lose."""


@analysis(place=10, check="weights that only steps change", needs=[LoopCalls.weights_written, Loss.loss])
def rewritten(reader: RunReader, cuts: Cuts) -> list[Finding]:  # noqa: ARG001  (the noise of the loss is the cut)
    written, steps = series(reader, LoopCalls.weights_written).finite, series(reader, LoopCalls.steps).finite
    course, total = loss_course(reader), float(steps.values.sum())
    number = float(written.values.sum())
    if course is None or not number or not total or number / total > RARE:
        return []
    places = np.flatnonzero(written.values > 0)
    spans = [(int(written.steps[place - 1]) if place else 0, int(written.steps[place])) for place in places]
    risen = [(span, found) for span in spans if (found := _risen(course, span)) is not None]
    if not risen:
        return []
    (_, (step, before, after)) = max(risen, key=lambda each: each[1][2] - each[1][1])
    times = "" if len(risen) == 1 else f" It rose after {len(risen):,} of {count(len(spans), 'such write')}."
    return [
        Finding(
            kind="state_reset",
            severity="warning",
            title=f"The weights were replaced before step {step:,}, and the loss went from {num(before)} to "
            f"{num(after)}",
            detail=f"Something else than the optimizer wrote the weights before {count(int(number), 'step')} of "
            f"{num(total)}, {between(spans[0][1], spans[-1][1])}. The loss was {num(before)} before step {step:,} and "
            f"{num(after)} from then on (medians of {AROUND}).{times}",
            advice="Look at what is loaded there: an old or untrained checkpoint, the worst in place of the best, an "
            "average that is put in and not taken out again, weights that are drawn anew. Load the optimizer's state "
            "with them.",
            evidence=evidence_over((spans[0][1], spans[-1][1]), written.probe, LoopCalls.weights_written,
                                   int(total), number),
            cause=True,
            explains=["diverging", "loss_spike", "bad_batch", "worsening", "overfitting", "plateau", "not_learning",
                      "labels_unrelated", "learning_rate_too_high", "exploding", "sorted_data"],
            ruled_out=["A step that was too large: the weights changed without a step."],
            since=step,
        )
    ]  # fmt: skip


def _risen(course: Course, span: tuple[int, int]) -> tuple[int, float, float] | None:
    """The step of the sharpest rise within a span, with the loss before and after it, if it surely is one."""
    inside = np.flatnonzero((course.steps > span[0]) & (course.steps <= span[1]))
    sharpest, best = 0.0, None
    for place in inside:
        earlier, later = course.values[max(0, place - AROUND) : place], course.values[place : place + AROUND]
        if min(len(earlier), len(later)) < AROUND:
            continue
        before, after = float(np.median(earlier)), float(np.median(later))
        noise = max(noise_of(course.values[max(0, place - 4 * AROUND) : place]), course.noise / 2)
        sure = after - before > SURE * MEDIAN_ERROR * noise * (2 / AROUND) ** 0.5
        much = after - before > MUCH * max(course.start.value - before, 0.0)
        apart = float(later.mean() - earlier.mean())
        if sure and much and apart > sharpest:
            sharpest, best = apart, (int(course.steps[place]), before, after)
    return best
