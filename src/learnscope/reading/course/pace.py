"""How far a training has come, to first order."""

from __future__ import annotations

from dataclasses import dataclass

from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import moves_of, reach_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import one_pass
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Pace:
    """How far a run has come, to first order."""

    way: float
    """Σ‖Δ‖/‖W‖ over all steps: how far the weights have moved."""
    could: float
    """Σ‖Δ‖‖g‖ over the size of the loss at the start."""
    straight: float
    """What the loss has lost over Σ‖Δ‖‖g‖, the most that it could: near 1, no step has met a bend yet."""


def pace_of(reader: RunReader) -> Pace | None:
    """None if losses, gradients or changes were not measured."""
    run = one_pass(reader)
    return run.remember("pace", lambda: _pace(run))


def _pace(reader: RunReader) -> Pace | None:
    course, moves, reach = loss_course(reader), moves_of(reader), reach_of(reader)
    if course is None or moves is None or reach is None or reach.total <= 0:
        return None
    steps = float(course.steps[-1] - course.steps[0] + 1)
    longer = max(steps / float(moves.lengths.sum()), 1.0)  # not every change was measured
    gained = course.start.value - course.end.value
    could = reach.total * longer
    return Pace(float(moves.ratio.sum()) * longer, could / max(abs(course.start.value), 1e-300), gained / could)


def hardly_begun(reader: RunReader, cuts: Cuts) -> bool:
    """Whether the weights have hardly moved, and what they moved has lowered the loss as the gradient says, or could
    not have been seen at all.

    Nothing can be said then about what the model could learn.
    """
    pace = pace_of(reader)
    if pace is None:
        return False
    return pace.way < cuts.short_way and (pace.straight > cuts.straight_way or unseen(pace, cuts))


def unseen(pace: Pace, cuts: Cuts) -> bool:
    """Whether all steps together could change the loss by little, to first order: the further the weights have come,
    the less."""
    if pace.way < cuts.shortest_way:
        return pace.could < cuts.slow_gain
    return pace.way < cuts.short_way and pace.could < cuts.slow_gain / 2
