"""Clips that take nearly everything, or nothing: by value, and of no tensor at all."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import steps_reach
from learnscope.findings.updates.loop_calls import STILL, WILD
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.updates import LoopCalls
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import adaptive, gradient_norms, moves_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

CUT_TO_ONE_SIZE = 0.5
"""Share of the entries that are as large as the largest one, from which a gradient is little more than its signs."""
OFTEN = 0.5
"""Clips of no tensor for each step, from which the loop never clips."""
SLOW = 1e-4
"""Relative change of the weights a step below which they hardly move."""


@analysis(place=14, check="clipping by value", needs=[GradientFlow.limit_share], at_least="measurements")
def clipped_by_value(reader: RunReader, cuts: Cuts) -> list[Finding]:
    shares, course, moves = series(reader, GradientFlow.limit_share).finite, loss_course(reader), moves_of(reader)
    if len(shares) < cuts.measurements or float(np.median(shares.values)) < CUT_TO_ONE_SIZE or adaptive(reader):
        return []
    share, steps = float(np.median(shares.values)), (int(shares.steps[0]), int(shares.steps[-1]))
    stuck = course is not None and (course.flat(cuts.little_gain) or steps_reach(reader, course) is False)
    slow = moves is not None and float(np.median(moves.per_step)) < SLOW
    norm = float(np.median(gradient_norms(reader).values))
    return [
        Finding(
            kind="clipped_hard",
            severity="warning" if stuck or slow else "info",
            title=f"Gradients are cut to one size: {percent(share)} of the entries are as large as the largest",
            detail=f"Of the entries that are not 0, {percent(share)} have the same size without their sign (median of "
            f"{count(len(shares), 'measurement')}, {between(*steps)}), as a clip by value leaves them when its bound "
            f"is far below what gradients are. ‖g‖ is {num(norm)} then, and a step is in proportion to it.",
            advice="Clip by norm (clip_grad_norm_), or raise the bound of clip_grad_value_ until only rare entries "
            "reach it.",
            evidence=evidence_over(steps, shares.probe, GradientFlow.limit_share, len(shares), share),
            cause=True,
            explains=STILL,
            since=steps[0],
        )
    ]


@analysis(place=14, check="clips that are given tensors", needs=[LoopCalls.empty_clips])
def clip_of_nothing(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """The bound that the loop believes in is not there: whatever is wild for want of it is explained by this."""
    clips, steps = series(reader, LoopCalls.empty_clips).finite, series(reader, LoopCalls.steps).finite
    number, total = float(clips.values.sum()), float(steps.values.sum())
    if number < cuts.measurements or not total or number / total < OFTEN:
        return []
    span = int(clips.steps[0]), int(clips.steps[-1])
    norms = gradient_norms(reader).values
    largest = f" ‖g‖ was up to {num(float(norms.max()))} where it was looked at." if len(norms) else ""
    return [
        Finding(
            kind="exploding",
            severity="warning",
            title="The clip of the gradients is given no tensor: nothing holds them, however large they are",
            detail=f"{num(number)} clips by norm in {num(total)} steps had no parameter at all, {between(*span)}: an "
            f"iterator that was used up before, such as model.parameters() that was kept and gone through.{largest}",
            advice="Give the clip model.parameters() anew each time, or a list of it.",
            evidence=evidence_over(span, clips.probe, LoopCalls.empty_clips, int(total), number),
            cause=True,
            explains=[kind for kind in WILD if kind != "exploding"],
            since=span[0],
        )
    ]
