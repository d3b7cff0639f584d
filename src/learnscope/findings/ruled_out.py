"""What the records speak against: sentences that a cause adds about others that would look the same."""

from __future__ import annotations

import numpy as np

from learnscope.quantities.updates import ParameterChange
from learnscope.reading.course.loss_course import Course
from learnscope.reading.course.movement import gradient_norms, highest_rates, moves_of, reach_of
from learnscope.reading.words import count, num, percent
from learnscope.store.reader import RunReader


def rate_is_right(reader: RunReader) -> str | None:
    """That the learning rate is not 0 and the weights move; None if it is, or was not recorded."""
    rates, moves = highest_rates(reader), moves_of(reader)
    if moves is None or not moves.ratio.any():
        return None
    rate = f"The learning rate is {num(float(np.median(rates.values)))} and the" if len(rates) else "The"
    return (
        f"{rate} weights move by {percent(float(np.median(moves.per_step)))} a step (median of "
        f"{count(len(moves), 'measurement')}): they are trained."
    )


def gradients_arrive(reader: RunReader) -> str | None:
    norms = gradient_norms(reader)
    if not len(norms) or not norms.values.any():
        return None
    middle = float(np.median(norms.values))
    return f"Gradients arrive: ‖g‖ is {num(middle)} (median of {count(len(norms), 'measurement')})."


def steps_reach(reader: RunReader, course: Course) -> bool | None:
    """Whether the steps could have changed the loss by more than its noise and by 5 %, to first order.

    None if the change of the weights or the gradients were not measured.
    """
    reach = reach_of(reader)
    if reach is None:
        return None
    return reach.total > max(course.noise, 0.05 * abs(course.start.value))


def measured_change(reader: RunReader) -> str:
    moves = moves_of(reader)
    return moves.probe if moves is not None else ParameterChange.probe


def said(*sentences: str | None) -> list[str]:
    """Those that are known."""
    return [sentence for sentence in sentences if sentence]
