"""A loss written by hand that falls, while the holdout is predicted ever worse, and in the end worse than by chance."""

from __future__ import annotations

import math

import numpy as np

from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.chance import chance_of
from learnscope.reading.course.loss_course import Course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.held_out import held_labels, held_out_loss
from learnscope.reading.words import count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

SURELY = 4.0
"""Standard errors below what guessing at random gets right."""


def wrong_way(reader: RunReader, logged: Course, cuts: Cuts) -> list[Finding]:
    """Nothing is known of a loss written by hand but that it falls: the holdout tells what it asks for."""
    right, losses = series(reader, Holdout.holdout_accuracy).finite, held_out_loss(reader).series.finite
    n, classes = series(reader, Holdout.holdout_examples).finite.values, _classes(reader)
    if chance_of(reader) is not None or not logged.improved or len(right) < cuts.holdout_measurements or not len(n):
        return []
    if classes is None or classes < 2 or len(losses) < cuts.holdout_measurements:
        return []
    even, last = 1 / classes, float(right.values[-cuts.measurements :].mean())
    risen = float(losses.values[-1]) > (1 + cuts.slow_gain) * float(losses.values[0])
    if last > min(even / 2, even - SURELY * math.sqrt(even * (1 - even) / float(n[-1]))) or not risen:
        return []
    steps = int(right.steps[0]), int(right.steps[-1])
    return [
        Finding(
            kind="loss_maximised",
            severity="critical",
            title=f"The loss asks for the wrong thing: it falls, and {percent(last)} of the holdout are right, fewer "
            "than by guessing",
            detail=f"The loss went from {num(logged.start.value)} to {num(logged.end.value)}, and the cross-entropy of "
            f"the holdout from {num(float(losses.values[0]))} to {num(float(losses.values[-1]))} "
            f"({count(len(losses), 'measurement')}). Guessing at random gives {percent(even)} right: to be below that "
            "takes knowledge, and it is used the wrong way round.",
            advice="Look at the loss by hand with the probability of the right class: it has to fall when that grows, "
            "at every value (a weight of p² in place of (1 − p)², a sign, a score in place of a loss).",
            evidence=evidence_over(steps, right.probe, Holdout.holdout_accuracy, len(right), last),
            cause=True,
            explains=["worsening", "overfitting", "not_generalising", "diverging", "holdout_differs", "memorised"],
            alternatives=["Classes of the holdout that are numbered otherwise than in training."],
            since=int(right.steps[min(1, len(right) - 1)]),
        )
    ]


def _classes(reader: RunReader) -> int | None:
    """How many classes the holdout has, where its labels were kept."""
    labels = held_labels(reader)
    return len(np.unique(labels)) if labels is not None and np.issubdtype(labels.dtype, np.integer) else None
