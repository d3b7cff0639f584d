"""How much worse the holdout is than what the model was trained on, and which findings say so."""

from __future__ import annotations

from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.held_out import held_out_loss
from learnscope.store.reader import RunReader

WORSE_ON_HOLDOUT = ("overfitting", "worsening", "not_generalising", "shortcut", "memorised", "holdout_differs")


def gap(reader: RunReader) -> float | None:
    """The last holdout loss over the training loss at the end; None if they cannot be compared."""
    held, course = held_out_loss(reader), loss_course(reader)
    values = held.series.finite.values
    if held.stand_in is not None or not len(values) or course is None or course.end.value <= 0:
        return None
    return float(values[-1]) / course.end.value
