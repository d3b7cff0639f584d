"""Which labels a model doubted while it learned them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.reading.gather import Floats

Ints = NDArray[np.int64]


class LabelsChanged(ValueError):
    """Evaluations of different data, whose mean would be one of nothing."""


class LabelLosses:
    """Sums over evaluations of the same labelled positions in the same order.

    The score of a label is the mean over the evaluations of −ln p(label), or whatever the task's loss is: what stays
    hard for long is suspicious, and a label that is memorised at last adds almost nothing, so that the evaluations
    before it was memorised count most (the mean loss over training ranks the noisy examples of O2U-Net, Huang et al.,
    ICCV 2019; AUM, arXiv 2001.10528, does the same with margins, which go on growing). Suggested is the class other
    than the label that has the largest sum of these losses over the evaluations that predicted it, -1 if none did.

    Memory is a few numbers a position, and one for each class that a position was ever mistaken for.
    """

    def __init__(self) -> None:
        self.evaluations = 0
        self._labels: Ints = np.zeros(0, np.int64)
        self._losses: Floats = np.zeros(0)
        self._keys: Ints = np.zeros(0, np.int64)  # position · classes + predicted class
        self._weights: Floats = np.zeros(0)
        self._classes = 1

    def add(self, labels: Any, losses: Any, predicted: Any) -> None:
        """One evaluation; its labels must be those of the evaluations before."""
        labels, predicted = np.asarray(labels, np.int64), np.asarray(predicted, np.int64)
        losses = np.asarray(losses, np.float64)
        if not self.evaluations:
            self._labels, self._losses = labels.copy(), np.zeros(len(labels))
        elif len(labels) != len(self._labels):
            raise LabelsChanged(f"{len(labels):,} labels, and {len(self._labels):,} before")
        elif (other := int((labels != self._labels).sum())) > 0:
            raise LabelsChanged(f"{other:,} of {len(labels):,} labels are other ones than before")
        self.evaluations += 1
        self._losses += losses
        self._vote(np.flatnonzero((predicted != labels) & (predicted >= 0)), predicted, losses)

    @property
    def labels(self) -> Ints:
        return self._labels

    @property
    def scores(self) -> Floats:
        """The higher, the more suspicious; NaN where a loss was."""
        return self._losses / max(self.evaluations, 1)

    @property
    def suggested(self) -> Ints:
        suggested = np.full(len(self._labels), -1, np.int64)
        position, predicted = self._keys // self._classes, self._keys % self._classes
        # by weight, and of equal weights the smaller class last, so that it is the one that stays
        order = np.lexsort((-predicted, self._weights))
        suggested[position[order]] = predicted[order]
        return suggested

    def _vote(self, wrong: Ints, predicted: Ints, losses: Floats) -> None:
        if not len(wrong):
            return
        classes = max(self._classes, int(predicted[wrong].max()) + 1)
        if classes > self._classes:
            self._keys = self._keys // self._classes * classes + self._keys % self._classes
            self._classes = classes
        keys = np.concatenate([self._keys, wrong * classes + predicted[wrong]])
        # a loss of infinity would hide all others, and one of NaN spoil them
        weights = np.concatenate([self._weights, np.nan_to_num(losses[wrong], nan=0.0, posinf=1e30)])
        self._keys, inverse = np.unique(keys, return_inverse=True)
        self._weights = np.bincount(inverse, weights=weights).astype(np.float64)


def noise_scores(scores: Floats, noisy: NDArray[np.bool_], k: int) -> dict[str, float | int]:
    """How well scores tell noisy labels: area under the ROC curve and precision among the `k` highest, by scikit-learn.

    Positions without a score are left out; `n` is how many are not. The area is NaN if all or none of them are noisy.
    """
    from scipy.stats import rankdata
    from sklearn.metrics import precision_score, roc_auc_score

    scored = ~np.isnan(scores)
    scores, noisy = scores[scored], noisy[scored]
    both = 0 < int(noisy.sum()) < len(noisy)
    k = min(k, len(scores))
    first = np.zeros(len(scores), bool)
    first[ranking(scores)[:k]] = True
    return {
        # of ranks, since a loss may be infinite
        "auroc": float(roc_auc_score(noisy, rankdata(scores))) if both else np.nan,
        "precision_at_k": float(precision_score(noisy, first)) if k else np.nan,
        "k": k, "noisy": int(noisy.sum()), "n": len(scores),
    }  # fmt: skip


def ranking(scores: Floats) -> Ints:
    """Positions from the highest score to the lowest, equal ones in order, those without a score last."""
    return np.argsort(-np.nan_to_num(scores, nan=-np.inf, posinf=np.inf), kind="stable").astype(np.int64)
