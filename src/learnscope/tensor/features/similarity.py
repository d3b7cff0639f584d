"""How similar two sets of features of the same examples are: linear CKA, without its bias towards 1."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic

FEWEST = 4
"""Examples that the unbiased estimator needs: it divides by n − 3."""
CONSTANT = 8 * torch.finfo(torch.float64).eps
"""Features that differ from their mean by at most this share of their size are constant up to rounding."""
VANISHED = 1e-12
"""An HSIC of features with themselves is rounding error if it is at most this share of its largest term."""


def unbiased_cka(x: Tensor, y: Tensor) -> float:
    """Linear CKA of features [n, d₁] and [n, d₂] of the same n ≥ 4 examples, from the unbiased HSIC₁.

    HSIC₁(X, Y)/√(HSIC₁(X, X)·HSIC₁(Y, Y)) (arXiv 2010.15327): between −1 and 1, about 0 for unrelated features, NaN
    where `why_no_cka` gives a reason.

    HSIC₁(K, L) = (tr(K̃L̃) + 1ᵀK̃1·1ᵀL̃1/((n−1)(n−2)) − 2/(n−2)·1ᵀK̃L̃1)/(n(n−3)) with K = XXᵀ, L = YYᵀ, and K̃, L̃
    their copies with a diagonal of zeros. In float64, and without an n × n matrix where n² > d₁d₂.
    """
    with plain_arithmetic(x.device):
        a, b = _Side(x), _Side(y)
        (cross, _), (own_a, size_a), (own_b, size_b) = _hsic(a, b), _hsic(a, a), _hsic(b, b)
    if not own_a > VANISHED * size_a or not own_b > VANISHED * size_b:
        return math.nan
    return cross / (math.sqrt(own_a) * math.sqrt(own_b))


def why_no_cka(x: Tensor) -> str | None:
    """Why features [n, d] have no CKA with any others; None if they have one."""
    if len(x) < FEWEST:
        return f"CKA needs {FEWEST} examples; there are {len(x)}"
    if not bool(x.isfinite().all()):
        return "features are not finite"
    with plain_arithmetic(x.device):
        side = _Side(x)
        if not bool(side.x.any()):
            return "features are the same for every example"
        value, size = _hsic(side, side)
    return None if value > VANISHED * size else "every two examples are equally alike: there is no structure to compare"


class _Side:
    """Centred features, and what two products with them share.

    They are divided by their largest entry, which CKA does not depend on: fourth powers neither underflow nor overflow.
    HSIC₁ does not depend on the mean either, but a large one would cost it digits.
    """

    def __init__(self, features: Tensor) -> None:
        if features.ndim != 2:
            raise ValueError(f"features are [examples, dimensions], not {list(features.shape)}")
        if len(features) < FEWEST:
            raise ValueError(f"the unbiased CKA needs {FEWEST} examples; there are {len(features)}")
        x = plain(features).double()
        largest = float(x.abs().max()) if x.numel() else 0.0
        x = x / largest if 0 < largest < math.inf else x
        centred = x - x.mean(0)
        self.x = torch.where(centred.abs().amax(0) <= CONSTANT * x.abs().amax(0), 0.0, centred)
        self.own = self.x.square().sum(1)
        self.rows = self.x @ self.x.sum(0) - self.own

    @cached_property
    def gram(self) -> Tensor:
        return self.x @ self.x.mT


def _hsic(a: _Side, b: _Side) -> tuple[float, float]:
    """HSIC₁, and the size of its largest term, by which rounding error is judged."""
    n = len(a.x)
    if n != len(b.x):
        raise ValueError(f"features of {n} and {len(b.x)} examples: they must be of the same ones")
    # tr(XXᵀYYᵀ) = ‖XᵀY‖², by whichever product is smaller
    if a.x.shape[1] * b.x.shape[1] <= n**2:
        full = float((a.x.mT @ b.x).square().sum())
    else:
        full = float((a.gram * b.gram).sum())
    trace = full - float(a.own @ b.own)
    corner = float(a.rows.sum() * b.rows.sum()) / ((n - 1) * (n - 2))
    edges = 2 / (n - 2) * float(a.rows @ b.rows)
    return (trace + corner - edges) / (n * (n - 3)), full / (n * (n - 3))
