"""Gradients that know of no target: every example is pulled to the same place."""

from __future__ import annotations

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import NUMBER_LOSSES, main_function
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import between, count, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

TOGETHER = 0.3
"""Spread of the outputs, in units of the root of the loss, below which they have come together."""
IN_ORDER = 0.02
"""Share of neighbours that are out of order, up to which the gradient is a function of the output alone."""


@analysis(place=21, check="every example has a target of its own", needs=[Inputs.gradient_disorder],
          at_least="measurements")  # fmt: skip
def one_target(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A gradient that rises with the output and depends on nothing else, at every measurement.

    With a target of its own an example's gradient depends on that, too: outputs in order have gradients in none.
    """
    found, function = series(reader, Inputs.gradient_disorder).finite, main_function(reader)
    if len(found) < 2 * cuts.measurements or found.values.max() > IN_ORDER or len(optimizers_of(reader)) > 1:
        return []  # one of two players has the same target for all
    told = (series(reader, Objective.broadcast).finite.values > 1).any()  # by what the loss function was given
    if told or (function and function not in NUMBER_LOSSES) or not _drawn_together(reader):
        return []
    steps, most = (int(found.steps[0]), int(found.steps[-1])), float(found.values.max())
    return [
        Finding(
            kind="targets_broadcast",
            severity="warning",
            title="Every example is held against the targets of all: the gradient of an output depends on the output "
            "alone",
            detail="Put in order by their outputs, the examples of a batch have gradients that rise from one to the "
            f"next: {percent(most)} of the neighbours at most are out of order ({count(len(found), 'measurement')}, "
            f"{between(*steps)}). Where each has a target of its own, about half of them are. So it is when outputs "
            "(N × 1) and targets (N) are broadcast to N × N in a loss written by hand, and the best that can be "
            "learned then is the mean of the targets.",
            advice="Compare the shapes of outputs and targets where the loss is computed: squeeze(1) the outputs, or "
            "give the targets a second dimension.",
            evidence=evidence_over(steps, found.probe, Inputs.gradient_disorder, len(found), most),
            cause=True,
            explains=["not_learning", "labels_unrelated", "plateau", "embedding_collapse", "worsening", "overfitting",
                      "not_generalising", "memorised"],
            alternatives=["Targets that are the same for all examples."],
            since=steps[0],
        )
    ]  # fmt: skip


def _drawn_together(reader: RunReader) -> bool:
    """Whether outputs end close to each other, and the loss stays: so it is where all have one target. Outputs far
    apart are in the order of their gradients whatever the targets are, if these are close to each other."""
    course, spread = loss_course(reader), series(reader, Inputs.output_spread, data="train").finite.values
    if course is None or not len(spread):
        return False
    return course.end.value > 0 and float(spread[-1]) < TOGETHER * course.end.value**0.5
