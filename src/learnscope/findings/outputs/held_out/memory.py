"""Training that is better than guessing by memory alone: nothing of it is seen on the holdout."""

from __future__ import annotations

import numpy as np

from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.chance import AT_CHANCE, Guessing
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.proportions import Share
from learnscope.reading.words import num, percent
from learnscope.store.reader import RunReader

LEAST_STEPS = 20
"""Losses on rows that are new, below which too little was seen for the first time."""
NOT_FAR = 0.75
"""Share of the loss of guessing, down to which what is learned of examples that came again may be memory."""
LITTLE = 0.93
"""The same where there is no holdout to tell: hardly below it."""
PEAK = 3.3
"""Standard errors above chance at which a holdout was better than guessing once: 1 in 2,000 by chance."""


def by_memory_alone(reader: RunReader, found: Guessing, cuts: Cuts) -> str:
    """A sentence if a loss that is still at chance goes with a holdout that never was any better than guessing.

    Examples that come again are predicted right more often after a while, whatever their labels. A loss that has gone
    somewhat below chance since counts too, if it was at chance as long as the rows were new.
    """
    held, right = held_out_loss(reader), series(reader, Holdout.holdout_accuracy).finite
    n, chance = series(reader, Holdout.holdout_examples).finite.values, found.chance
    losses = held.series.finite.values
    if chance.loss is None or chance.accuracy is None or held.stand_in is not None:
        return ""
    if not found.loss_at_chance and not _at_first_sight(reader, found):
        return ""
    if not len(losses) and found.course is not None and found.course.end.value > LITTLE * chance.loss:
        return "It went somewhat below that only when the rows had come before: what training is better by is memory. "
    if len(losses) < cuts.holdout_measurements or not len(right) or not len(n) or n[-1] < cuts.chance_examples:
        return ""
    share = Share(float(right.values[-cuts.measurements :].mean()), int(n[-1]))
    ever = float(np.convolve(right.values, np.full(3, 1 / 3), "valid").max()) if len(right) >= 3 else share.value
    most = chance.accuracy + PEAK * (chance.accuracy * (1 - chance.accuracy) / float(n[-1])) ** 0.5
    if losses.min() < AT_CHANCE[0] * chance.loss or share.interval[0] > chance.accuracy or ever > most:
        return ""
    return (
        f"The holdout loss was {num(float(losses.min()))} at its best, and {percent(share.value)} of the holdout is "
        "predicted right: what training is better by is memory. "
    )


def _at_first_sight(reader: RunReader, found: Guessing) -> bool:
    """Whether the loss of rows that had not come before was at chance, and is not far below that even now."""
    seen, course, chance = series(reader, Inputs.seen_share).finite, found.course, found.chance.loss
    again = np.flatnonzero(seen.values > 0)
    if course is None or chance is None or not len(again) or again[0] < 1:
        return False
    if course.end.value > AT_CHANCE[1] * chance:  # it is on its way down to chance, and memory has no part in that
        return False
    new = course.values[course.steps <= int(seen.steps[again[0] - 1])]
    if len(new) < LEAST_STEPS or course.end.value < NOT_FAR * chance:
        return False
    return AT_CHANCE[0] * chance <= float(np.median(new[len(new) // 2 :]))
