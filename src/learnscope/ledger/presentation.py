"""What one more presentation changes in the rows of distinct examples, in place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.ledger.batch import Batch


def learn(counts: NDArray[Any], correct: NDArray[np.bool_], epoch: int) -> None:
    """When each example was right or wrong; `presentations` counts this one already."""
    number, since = counts["presentations"], counts["first_learned"]
    (wrong,), (new,) = (~correct).nonzero(), np.greater(correct, since).nonzero()
    counts["times_correct"] += correct
    np.copyto(counts["last_correct"], number, where=correct)
    if len(wrong):  # learned means correct from then on: a wrong answer resets it, and where it was learned, forgets
        counts["forgetting_events"][wrong] += since[wrong] > 0
        since[wrong] = 0
    if len(new):
        since[new], counts["learned_epoch"][new] = number[new], epoch
        never = new[counts["first_correct"][new] == 0]
        counts["first_correct"][never] = number[never]
    counts["last_epoch"] = epoch


def add_scores(scores: NDArray[Any], count: NDArray[Any], batch: Batch) -> None:
    """Means and sums over `count` presentations with finite scores, the batch's included."""
    mean = scores["confidence"]
    deviation = batch.p_gold - mean
    mean += deviation / count
    deviation *= batch.p_gold - mean
    scores["confidence_m2"] += deviation  # Welford: no difference of large sums
    for name, values in (("aum", batch.margin), ("el2n_mean", batch.el2n)):
        change = values - scores[name]
        change /= count
        scores[name] += change
    scores["el2n_last"] = batch.el2n
    scores["cumulative_loss"] += batch.loss


MOST_VOTES = 255


def vote(
    classes: NDArray[np.int16], votes: NDArray[np.uint8], at: NDArray[np.int64], predicted: NDArray[np.int64]
) -> None:
    """Count what was predicted in place of the labels, in 3 bytes an example: one class, and its votes.

    A prediction of the kept class adds a vote, any other takes one away, and where there are none the new class is
    kept: what was predicted in more than half of the wrong presentations stays (Boyer & Moore 1991). Right ones do not
    count. Classes beyond 32,767 are not kept.
    """
    (wrong,) = ((predicted >= 0) & (predicted <= np.iinfo(np.int16).max)).nonzero()
    if not len(wrong):
        return
    rows, new = at[wrong], predicted[wrong].astype(np.int16)
    kept, number = classes[rows], votes[rows]
    none = number == 0
    same = none | (kept == new)
    classes[rows] = np.where(none, new, kept)
    votes[rows] = np.where(same, number + (number < MOST_VOTES), number - 1)
