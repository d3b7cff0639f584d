"""How well features separate labels: silhouette and a linear probe. Both draw random numbers from their own seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
FOLDS = 5
SEED = 0
SILHOUETTE_EXAMPLES = 1000
"""Above this number of examples the silhouette is that of a random subset: it takes n² distances."""
STRENGTHS = (1.0, 10.0, 100.0, 1e3, 1e4)
"""Ridge strengths, chosen in each fold's training part by leave-one-out error."""
ONE_THREAD = 1024
"""Up to this number of examples or dimensions the probe uses one thread: more are no faster here, and they wait for
each other by spinning, which takes seconds beside a busy training loop."""


@dataclass(frozen=True, slots=True)
class Score:
    """A value and its number of examples, or None with the reason."""

    value: float | None
    examples: int
    reason: str | None = None


def silhouette(features: Tensor, labels: Tensor, *, limit: int = SILHOUETTE_EXAMPLES, seed: int = SEED) -> Score:
    """Mean over examples of (b − a)/max(a, b): a, b the mean distances to its own and to the nearest other class.

    With more than `limit` examples, of a subset drawn with `seed`, which is the same for the same number of examples.
    """
    x, y = _arrays(features, labels)
    if len(y) > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(len(y), limit, replace=False))
        x, y = x[chosen], y[chosen]
    classes = len(np.unique(y))
    if not np.isfinite(x).all():
        return Score(None, len(y), "features are not finite")
    if not 2 <= classes < len(y):
        counts = f"{'is 1 class' if classes == 1 else f'are {classes} classes'} among {len(y)} examples"
        return Score(None, len(y), f"a silhouette needs 2 classes and fewer classes than examples; there {counts}")
    from sklearn.metrics import silhouette_score

    # distances are computed from squares, in which a large common offset would cancel badly
    return Score(float(silhouette_score(x - x.mean(0), y)), len(y))


def linear_probe(features: Tensor, labels: Tensor) -> Score:
    """Accuracy of a ridge classifier on standardised features, on held-out folds, over all examples used.

    Stratified, shuffled folds; scaling and ridge strength come from each fold's training part. Classes
    with fewer than `FOLDS` examples cannot be in every fold and are left out.
    """
    x, y = _arrays(features, labels)
    if not np.isfinite(x).all():
        return Score(None, len(y), "features are not finite")
    classes, which, sizes = np.unique(y, return_inverse=True, return_counts=True)
    used = sizes[which] >= FOLDS
    n, usable = int(used.sum()), int((sizes >= FOLDS).sum())
    if usable < 2 or 2 * n < len(y):
        reason = (
            f"a linear probe over {FOLDS} folds needs 2 classes of {FOLDS} examples, and half of the examples in such "
            f"classes; {usable} of {len(classes)} are large enough, with {n} of {len(y)} examples"
        )
        return Score(None, n, reason)
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    x, y = x[used], np.unique(y[used], return_inverse=True)[1]
    right = 0
    with threadpool_limits(1 if min(x.shape) <= ONE_THREAD else None, user_api="blas"):
        for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(x, y):
            scale = StandardScaler().fit(x[train])
            decisions = ridge_decisions(scale.transform(x[train]), y[train], scale.transform(x[test]), STRENGTHS)
            predicted = decisions.argmax(1) if decisions.ndim == 2 else decisions > 0
            right += int((predicted == y[test]).sum())
    return Score(right / n, n)


def ridge_decisions(train: Floats, labels: NDArray[np.int64], test: Floats, strengths: Sequence[float]) -> Floats:
    """What scikit-learn's `RidgeClassifierCV(alphas=strengths)` decides of `test`: [m], or [m, C] for C > 2 classes.

    Labels, 0 to C − 1 and each of them there, are regressed on as ±1, with an intercept. The strength is the one of
    least mean squared leave-one-out error over examples and classes, the smaller of equal ones. Of n
    examples with d dimensions, the n × n or the d × d product is decomposed, whichever is smaller, and once; after
    that, a strength costs little more than a product with the targets. (scikit-learn's takes 3.5 times as long for 1200
    digits of 64 pixels, and 3.9 times for 5000 examples of 768 dimensions.)
    """
    classes = int(labels.max()) + 1
    targets = np.where(labels[:, None] == (np.arange(classes) if classes > 2 else [1]), 1.0, -1.0)
    mean, middle = train.mean(0), targets.mean(0)
    x, t = train - mean, targets - middle
    wide = x.shape[0] <= x.shape[1]
    # with XXᵀ = VLVᵀ (wide), or XᵀX = VLVᵀ and Z = XV
    values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    turned = vectors if wide else x @ vectors
    products, squares = turned.T @ t, turned**2
    least, best = np.inf, np.zeros_like(products)
    for strength in strengths:
        shrunk = 1 / (np.maximum(values, 0) + strength)
        solved = shrunk[:, None] * products
        if wide:  # errors left out are G⁻¹t / diag(G⁻¹), G = XXᵀ + α, without the intercept's part
            solved = vectors @ solved
            left_out = solved / (squares @ shrunk - 1 / (strength * len(x)))[:, None]
        else:  # the hat's diagonal is Σ Z²/(L + α) + 1/n
            left_out = (t - turned @ solved) / (1 - squares @ shrunk - 1 / len(x))[:, None]
        error = float((left_out**2).mean())
        if error < least:
            least, best = error, solved
    weights = (x.T if wide else vectors) @ best
    decisions: Floats = (test - mean) @ weights + middle
    return decisions if classes > 2 else decisions[:, 0]


def largest_class_share(labels: Tensor) -> float | None:
    """Accuracy of always predicting the largest class, among the classes a linear probe uses; None if it uses none."""
    _, sizes = np.unique(labels.cpu().numpy(), return_counts=True)
    used = sizes[sizes >= FOLDS]
    return float(used.max() / used.sum()) if len(used) else None


def _arrays(features: Tensor, labels: Tensor) -> tuple[Floats, NDArray[np.int64]]:
    x: Floats = features.detach().cpu().double().numpy()
    return x, labels.detach().cpu().numpy().astype(np.int64)
