"""How alike two sets of features of the same examples are: linear CKA, without its bias towards 1."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic

FEWEST = 4
"""Examples that the unbiased estimator needs: it divides by n − 3."""
CONSTANT = 8 * torch.finfo(torch.float64).eps
"""Features that differ from their mean by no more than this share of their size are constant up to rounding."""
VANISHED = 1e-12
"""HSIC of features with themselves up to this share of the terms it is the difference of is rounding."""


class TooFewExamplesError(ValueError):
    """There are fewer than four examples in a batch."""


@dataclass(slots=True)
class BatchedCKA:
    """Linear CKA over mini-batches (arXiv 2010.15327): Σ HSIC₁(X, Y) / √(Σ HSIC₁(X, X) · Σ HSIC₁(Y, Y)).

    Each HSIC₁ is summed over the batches first and the ratio is taken last: a mean of ratios would be biased again.
    """

    _sums: list[float] = field(default_factory=lambda: [0.0] * 3)
    _sizes: list[float] = field(default_factory=lambda: [0.0] * 3)

    def add(self, x: Tensor, y: Tensor) -> None:
        """One batch: features [n, d₁] and [n, d₂] of the same n ≥ 4 examples."""
        with plain_arithmetic(x.device):
            one, two = _Side(_centred(x)), _Side(_centred(y))
            for place, (a, b) in enumerate(((one, two), (one, one), (two, two))):
                value, size = _hsic(a, b)
                self._sums[place] += value
                self._sizes[place] += size

    def value(self) -> float:
        """Between −1 and 1 for a single batch, about 0 for unrelated features; NaN where `why_no_cka` has a reason."""
        across, first, second = self._sums
        if not first > VANISHED * self._sizes[1] or not second > VANISHED * self._sizes[2]:
            return math.nan
        return across / (math.sqrt(first) * math.sqrt(second))


def unbiased_cka(x: Tensor, y: Tensor) -> float:
    """Linear CKA of features [n, d₁] and [n, d₂] of the same n ≥ 4 examples, from the unbiased HSIC₁.

    HSIC₁(K, L) = (tr(K̃L̃) + 1ᵀK̃1·1ᵀL̃1/((n−1)(n−2)) − 2/(n−2)·1ᵀK̃L̃1)/(n(n−3)) with K = XXᵀ, L = YYᵀ, and K̃, L̃
    their copies with a diagonal of zeros. In float64, and without an n × n matrix where n² > d₁d₂.
    """
    return batched_cka([(_scaled(x), _scaled(y))])


def batched_cka(batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """`BatchedCKA` over pairs of features."""
    sums = BatchedCKA()
    for x, y in batches:
        sums.add(x, y)
    return sums.value()


def biased_cka(x: Tensor, y: Tensor) -> float:
    """The usual linear CKA, ‖XᵀY‖²/(‖XᵀX‖‖YᵀY‖) of centred features; near 1 for any features that are wider than n.

    For comparison with published figures; use `unbiased_cka` to compare layers or moments.
    """
    with plain_arithmetic(x.device):
        one, two = _Side(_centred(_scaled(x))), _Side(_centred(_scaled(y)))
        first, second = _cross(one, one), _cross(two, two)
        return _cross(one, two) / math.sqrt(first) / math.sqrt(second) if first > 0 and second > 0 else math.nan


def why_no_cka(x: Tensor) -> str | None:
    """Why features [n, d] have no CKA with any others; None if they have one."""
    if len(x) < FEWEST:
        return f"CKA needs {FEWEST} examples; there are {len(x)}"
    if not bool(x.isfinite().all()):
        return "features are not finite"
    with plain_arithmetic(x.device):
        centred = _centred(_scaled(x))
        if not bool(centred.any()):
            return "features are the same for every example"
        side = _Side(centred)
        value, size = _hsic(side, side)
    return None if value > VANISHED * size else "every two examples are equally alike: there is no structure to compare"


def _scaled(x: Tensor) -> Tensor:
    """By the largest entry, so that fourth powers neither vanish nor overflow; CKA does not see it."""
    x = plain(x).double()
    largest = float(x.abs().max()) if x.numel() else 0.0
    return x / largest if 0 < largest < math.inf else x


def _centred(x: Tensor) -> Tensor:
    """Without the mean. HSIC₁ does not see it either, but a large mean would take away its digits."""
    if x.ndim != 2:
        raise ValueError(f"features are [examples, dimensions], not {list(x.shape)}")
    if len(x) < FEWEST:
        raise TooFewExamplesError(f"the unbiased CKA needs {FEWEST} examples in every batch; there are {len(x)}")
    x = plain(x).double()
    centred = x - x.mean(0)
    rounding = CONSTANT * x.abs().amax(0)
    return torch.where(centred.abs().amax(0) <= rounding, 0.0, centred)


class _Side:
    """Centred features, and what is computed of them once though it is needed for two products."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.own = x.square().sum(1)
        self.rows = x @ x.sum(0) - self.own

    @cached_property
    def gram(self) -> Tensor:
        return self.x @ self.x.mT


def _hsic(one: _Side, two: _Side) -> tuple[float, float]:
    """HSIC₁, and the size of the largest term in it, from which rounding is judged."""
    n = len(one.x)
    if n != len(two.x):
        raise ValueError(f"features of {n} and {len(two.x)} examples: they must be of the same ones")
    whole = _cross(one, two)
    trace = whole - float(one.own @ two.own)
    corner = float(one.rows.sum() * two.rows.sum()) / ((n - 1) * (n - 2))
    edges = 2 / (n - 2) * float(one.rows @ two.rows)
    return (trace + corner - edges) / (n * (n - 3)), whole / (n * (n - 3))


def _cross(one: _Side, two: _Side) -> float:
    """tr(XXᵀYYᵀ) = ‖XᵀY‖², through whichever product is smaller."""
    if one.x.shape[1] * two.x.shape[1] <= len(one.x) ** 2:
        return float((one.x.mT @ two.x).square().sum())
    return float((one.gram * two.gram).sum())
