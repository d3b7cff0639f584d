"""Several losses of which one drowns another: what the small one asks for is not learned."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Loss, Objective
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, labelled, series
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

DROWNED = 300.0
"""Times the small one that the large one is throughout."""
NOT_LEARNED = 0.95
"""Share of its start above which the small one has not been learned."""
ONE_LOSS = 0.1
"""How far the logged loss may be from the large one, in units of it, to be made of it."""


@analysis(place=15, check="losses of one size", needs=[Objective.objective_mean, Loss.loss], at_least="measurements")
def drowned(reader: RunReader, cuts: Cuts) -> list[Finding]:
    course = loss_course(reader)
    functions = [str(name) for name in labelled(reader, Objective.objective_mean, "function")]
    if course is None or len(functions) < 2 or len(optimizers_of(reader)) > 1:
        return []
    courses = {name: series(reader, Objective.objective_mean, function=name).finite for name in functions}
    sizes = {name: found for name, found in courses.items() if len(found) >= 3 * cuts.measurements}
    pairs = [(large, small) for large in sizes for small in sizes if _drowns(sizes[large], sizes[small], cuts)]
    # the logged loss is made of it: each may have a step of its own
    pairs = [pair for pair in pairs if _is_logged(course.steps, course.values, sizes[pair[0]])]
    if not pairs:
        return []
    large, small = pairs[0]
    mine, other = sizes[small], sizes[large]
    steps = int(mine.steps[0]), int(mine.steps[-1])
    return [
        Finding(
            kind="targets_out_of_range",
            severity="warning",
            title=f"One loss drowns another: {large} is {num(float(np.median(other.values)))} and {small} "
            f"{num(float(np.median(mine.values)))}",
            detail=f"{large} went from {num(float(other.values[0]))} to {num(float(other.values[-1]))} and {small} "
            f"from {num(float(mine.values[0]))} to {num(float(mine.values[-1]))} ({count(len(mine), 'measurement')}): "
            "their sum falls when the first one does, whatever becomes of the second, and a clip of the gradient "
            "leaves next to nothing of the second.",
            advice=f"Scale the targets of {large} to a standard deviation of 1, or weigh the losses so that they are "
            "of one size.",
            evidence=evidence_over(steps, mine.probe, Objective.objective_mean, len(mine), float(mine.values[-1])),
            cause=True,
            explains=["not_learning", "labels_unrelated", "majority_guess", "plateau", "clipped_hard", "exploding",
                      "exploding_initialisation", "worsening", "overfitting"],
            since=steps[0],
        )
    ]  # fmt: skip


def _drowns(large: Series, small: Series, cuts: Cuts) -> bool:
    n = min(len(large), len(small)) // 3
    if n < cuts.measurements or small.values[0] <= 0 or not (small.values > 0).all():
        return False
    above = float(np.median(large.values)) > DROWNED * float(np.median(small.values))
    return above and float(np.median(small.values[-n:])) > NOT_LEARNED * float(small.values[0])


def _is_logged(steps: np.ndarray, values: np.ndarray, part: Series) -> bool:
    _, ours, theirs = np.intersect1d(steps, part.steps, return_indices=True)
    if not len(ours):
        return False
    off = np.abs(values[ours] - part.values[theirs]) / np.maximum(np.abs(part.values[theirs]), 1e-300)
    return float(np.median(off)) < ONE_LOSS
