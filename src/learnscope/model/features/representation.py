"""What features with labels are worth: silhouette and a linear probe. Random numbers have seeds of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from learnscope.model.features.ridge import ridge_decisions

FOLDS = 5
SEED = 0
SILHOUETTE_EXAMPLES = 1000
"""Examples from which on a silhouette is that of a random subset: it takes n² distances."""
STRENGTHS = (1.0, 10.0, 100.0, 1e3, 1e4)
"""Strengths of the ridge among which each fold's training part chooses, by its leave-one-out errors."""
ONE_THREAD = 1024
"""Examples or dimensions up to which the probe computes on one thread: more are no faster here, and they wait for each
other by spinning, which beside a busy training loop takes seconds."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number with the examples it is from, or None with the reason."""

    value: float | None
    examples: int
    reason: str | None = None


def silhouette(features: Tensor, labels: Tensor, *, limit: int = SILHOUETTE_EXAMPLES, seed: int = SEED) -> Score:
    """Mean over examples of (b − a)/max(a, b): a, b the mean distances to its own and to the nearest other class.

    Of more than `limit` examples, a subset drawn with `seed`: always the same for as many examples.
    """
    x, y = _arrays(features, labels)
    if len(y) > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(len(y), limit, replace=False))
        x, y = x[chosen], y[chosen]
    classes = len(np.unique(y))
    if not np.isfinite(x).all():
        return Score(None, len(y), "features are not finite")
    if not 2 <= classes < len(y):
        return Score(None, len(y), f"a silhouette needs 2 classes and fewer classes than examples; {_there(y)}")
    from sklearn.metrics import silhouette_score

    # distances are taken from squares, in which a common offset would drown them
    return Score(float(silhouette_score(x - x.mean(0), y)), len(y))


def linear_probe(features: Tensor, labels: Tensor, *, folds: int = FOLDS, seed: int = SEED) -> Score:
    """Accuracy on held-out folds of a ridge classifier on standardised features, over all examples that took part.

    Stratified folds, shuffled with `seed`; scaling and the ridge's strength come from each fold's training part.
    Classes with fewer than `folds` examples cannot be in every fold and are left out.
    """
    x, y = _arrays(features, labels)
    if not np.isfinite(x).all():
        return Score(None, len(y), "features are not finite")
    classes, which, sizes = np.unique(y, return_inverse=True, return_counts=True)
    kept = sizes[which] >= folds
    n, usable = int(kept.sum()), int((sizes >= folds).sum())
    if usable < 2 or 2 * n < len(y):
        return Score(
            None,
            n,
            f"a linear probe over {folds} folds needs 2 classes of {folds} examples, and half of the examples in such "
            f"classes; {usable} of {len(classes)} are large enough, with {n} of {len(y)} examples",
        )
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    x, y = x[kept], np.unique(y[kept], return_inverse=True)[1]
    right = 0
    with threadpool_limits(1 if min(x.shape) <= ONE_THREAD else None, user_api="blas"):
        for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y):
            scale = StandardScaler().fit(x[train])
            decided = ridge_decisions(scale.transform(x[train]), y[train], scale.transform(x[test]), STRENGTHS)
            said = decided.argmax(1) if decided.ndim == 2 else decided > 0
            right += int((said == y[test]).sum())
    return Score(right / n, n)


def largest_class_share(labels: Tensor, *, at_least: int = FOLDS) -> float | None:
    """What always naming the largest class gets, among classes that a linear probe takes; None without any."""
    _, sizes = np.unique(labels.cpu().numpy(), return_counts=True)
    taken = sizes[sizes >= at_least]
    return float(taken.max() / taken.sum()) if len(taken) else None


def _arrays(features: Tensor, labels: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    x: NDArray[np.float64] = features.detach().cpu().double().numpy()
    return x, labels.detach().cpu().numpy().astype(np.int64)


def _there(y: NDArray[np.int64]) -> str:
    classes = len(np.unique(y))
    return f"there {'is 1 class' if classes == 1 else f'are {classes} classes'} among {len(y)} examples"
