"""Momentum that never lets go: an optimizer that goes on in old directions, past where they lead down."""

from __future__ import annotations

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.gradients.steps_taken import lost_again
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.events import jump, rise, spikes
from learnscope.reading.course.loss_course import FEWEST, Course, loss_course
from learnscope.reading.course.movement import options_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

EXPLAINS = (
    "diverging", "exploding", "learning_rate_too_high", "loss_spike", "bad_batch", "worsening", "overfitting",
    "not_learning", "nonfinite", "dead_units", "labels_unrelated", "plateau", "saturated_units", "zero_gradients",
)  # fmt: skip


@analysis(place=12, check="momentum", needs=[Loss.loss], at_least=FEWEST, described=["optimizers"])
def momentum_too_high(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """β₁ above β₂, as when the two were exchanged, or a momentum of 1, beside a loss that rises or jumps."""
    given = [pair for pair in options_of(reader, "betas") if isinstance(pair, list | tuple) and len(pair) == 2]
    betas = [pair for pair in given if all(isinstance(beta, int | float) for beta in pair)]
    wrong = [pair for pair in betas if pair[0] >= cuts.long_momentum and pair[0] > pair[1]]
    course = loss_course(reader)
    endless = [value for value in options_of(reader, "momentum") if isinstance(value, int | float) and value >= 1]
    if course is not None and endless and _harmed(course):
        return [_endless(course, float(endless[0]))]
    if not wrong or course is None or not _harmed(course):
        return []
    first, second = wrong[0]
    steps = int(course.steps[0]), int(course.steps[-1])
    return [
        Finding(
            kind="momentum_too_high",
            severity="warning",
            title=f"The optimizer's betas seem to be exchanged: {num(first)} and {num(second)}",
            detail=f"The direction of a step is an average over about {num(1 / (1 - first))} steps, and its size one "
            f"over {num(1 / max(1 - second, 1e-9))}: steps go on for long in directions that no longer lead down. The "
            f"loss was {num(course.best.value)} at its best and {num(course.end.value)} in the end.",
            advice="The first is that of the momentum, usually 0.9, the second that of the size, usually 0.999.",
            evidence=evidence_over(steps, course.probe, course.name, len(course), float(first)),
            cause=True,
            explains=EXPLAINS,
            since=steps[0],
        )
    ]


def _endless(course: Course, momentum: float) -> Finding:
    steps = int(course.steps[0]), int(course.steps[-1])
    return Finding(
        kind="momentum_too_high",
        severity="warning",
        title=f"The momentum is {num(momentum)}: nothing of any gradient is ever forgotten",
        detail="Each step adds its gradient to all before at their full size, so that steps grow without a bound and "
        f"never slow down. The loss was {num(course.best.value)} at its best and {num(course.end.value)} in the end.",
        advice="Set momentum to 0.9, or to 0.99 at most with a learning rate ten times lower.",
        evidence=evidence_over(steps, course.probe, course.name, len(course), momentum),
        cause=True,
        explains=EXPLAINS,
        since=steps[0],
    )


def _harmed(course: Course) -> bool:
    """Whether the loss rose, jumped, gave up what it had gained, or never fell; one that is thrown about widely has no
    rise that is sure, and spikes instead."""
    thrown = rise(course) is not None or jump(course) is not None or bool(spikes(course))
    return thrown or not course.improved or lost_again(course)
