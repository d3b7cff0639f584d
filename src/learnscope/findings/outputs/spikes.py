"""Single losses far above all others: a batch that is unlike the rest, or a step that did harm."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.events import Spike, spikes
from learnscope.reading.course.loss_course import FEWEST, Course, loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid
from learnscope.reading.lost import rows_told
from learnscope.reading.words import count, listed, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

ONE_BATCH = 5
"""Losses until a spike is over, up to which its first batch explains it."""
EARLIER = 5
"""Measurements of a layer's gradient with which that at a spike is compared."""
STANDS_OUT = 3.0
"""A layer's gradient stands out when it is this many times its own median before."""


@analysis(place=15, check="spikes of the loss", needs=[Loss.loss], at_least=FEWEST)
def loss_spikes(reader: RunReader, cuts: Cuts) -> list[Finding]:
    course = loss_course(reader)
    # the loss of a policy lies around zero and has no usual size
    if course is None or 0.05 < float((course.values < 0).mean()) < 0.95:
        return []
    found = [spike for spike in spikes(course) if not _of_no_account(spike, course, cuts)]
    one_batch = [spike for spike in found if _of_one_batch(spike, course)]
    slow = [spike for spike in found if spike not in one_batch]
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    before_clip = grid(reader, GradientFlow.norm, stage="before_clip")
    norms = before_clip or norms
    findings = [_bad_batch(one_batch, course, norms, cuts, reader)] if one_batch else []
    return [*findings, *([_slow(slow, course, norms, cuts)] if slow else [])]


def _of_no_account(spike: Spike, course: Course, cuts: Cuts) -> bool:
    """A loss that is almost gone has hardly any noise: a single hard example stands out and spoils nothing."""
    almost_gone = spike.level <= cuts.plateau_rest * course.start.value
    return almost_gone and spike.value - spike.level < cuts.lost_share * course.gain


def _of_one_batch(spike: Spike, course: Course) -> bool:
    """Its first loss is the highest, and soon all is as before: the weights of the steps around it were sound."""
    place = int(np.searchsorted(course.steps, spike.step))
    first = place == 0 or course.values[place - 1] < spike.level + 0.1 * (spike.value - spike.level)
    return first and spike.back is not None and spike.values <= ONE_BATCH


def _bad_batch(found: list[Spike], course: Course, norms: Grid, cuts: Cuts, reader: RunReader) -> Finding:
    worst = max(found, key=lambda spike: spike.heights)
    steps = [f"{spike.step:,}" for spike in found]
    single = len(found) == 1
    where = f"step {steps[0]}" if single else f"{len(found)} steps"
    lasted = (
        f"one step later it was {num(worst.level)} again"
        if worst.values == 1
        else f"it took {worst.values} values to return"
    )
    return Finding(
        kind="bad_batch",
        severity="warning",
        title=f"The batch of {where} is unlike the others: a loss of {num(worst.value)} where {num(worst.level)} is "
        "usual",
        detail=f"{_told(worst, course)}; {lasted}. The weights at the steps around it were nearly the same and had a "
        f"usual loss, so it is what was in the batch, inputs or targets, that was different"
        f"{'' if single else f': at steps {listed(steps, cuts.names_listed)}'}.{_layers(worst, norms)}"
        f"{rows_told(reader, worst.step)}",
        advice=f"Look at the examples of step {worst.step:,}: values that are not scaled, empty or padded rows, wrong "
        "targets. Clipping limits what such a batch can do.",
        evidence=evidence_over([spike.step for spike in found], course.probe, course.name, len(course), worst.value),
        cause=True,
        explains=["loss_spike", "exploding", "diverging"],
        since=found[0].step,
        ruled_out=["A learning rate that is too high: the loss would not have been back at once."],
    )  # fmt: skip


def _slow(found: list[Spike], course: Course, norms: Grid, cuts: Cuts) -> Finding:
    worst = max(found, key=lambda spike: spike.heights)
    steps = listed([f"{spike.step:,}" for spike in found], cuts.names_listed)
    others = f" There are {len(found)} such spikes, at steps {steps}." if len(found) > 1 else ""
    back = (
        f"back at step {worst.back:,}, after {count(worst.values, 'loss', 'losses')}"
        if worst.back
        else "not back when the run ended"
    )
    return Finding(
        kind="loss_spike",
        severity="warning",
        title=f"The loss jumped to {num(worst.value)} around step {worst.step:,}, from {num(worst.level)}",
        detail=f"{_told(worst, course)}; it was {back}."
        f"{others}{_layers(worst, norms)}",
        advice="What it took steps to undo was done to the weights: a step that was too large. Clip gradients by norm "
        "or lower the learning rate; look at the batch just before the spike too.",
        evidence=evidence_over([spike.step for spike in found], course.probe, course.name, len(course), worst.value),
        since=found[0].step,
        alternatives=[
            "A step that was too large: the update of the step before the spike is then far above the others "
            "(ParameterChange).",
            "Data that changed for a while: then the loss on a fixed holdout shows no spike.",
        ],
    )  # fmt: skip


def _told(spike: Spike, course: Course) -> str:
    return (
        f"At step {spike.step:,} the loss was {num(spike.value)}, {num(spike.heights)} times its noise above the "
        "median "
        f"of the losses before ({num(spike.level)}), in a course of {count(len(course), 'loss', 'losses')}"
    )


def _layers(spike: Spike, norms: Grid) -> str:
    """Which layer's gradient stood out most against its own past, if that was measured at the spike."""
    place = np.flatnonzero(norms.steps == spike.step)
    if not len(place) or place[0] < EARLIER:
        return ""
    now, before = norms.values[place[0]], norms.values[max(0, place[0] - 4 * EARLIER) : place[0]]
    with np.errstate(all="ignore"):
        times = now / np.nanmedian(before, axis=0)
    times = np.where(np.isfinite(times), times, 0.0)
    top = int(times.argmax())
    if times[top] < STANDS_OUT:
        return ""
    return (
        f" The gradient of {norms.scopes[top]} stood out most there: {num(float(times[top]))} times its median before."
    )
