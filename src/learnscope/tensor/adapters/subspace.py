"""How two subspaces lie to each other, and which directions of a tuned weight its base did not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.context import plain, plain_arithmetic

INTRUDERS, SIMILARITY = 10, 0.5
NEAR_RIGHT, NEAR_ZERO = 1e-6, 0.99
"""Squared cosines of angles within 0.06 degrees of a right one, and below 6 degrees."""
TOGETHER = 1 << 22
"""Entries of spans of equal shape that are compared by one call."""


def principal_angles(a: Tensor, b: Tensor) -> Tensor:
    """Angles between the spans of two sets of orthonormal columns [d, i] and [d, j], in radians, ascending.

    min(i, j) of them. Large ones from their cosine, small ones from their sine (Björck & Golub 1973; Knyazev &
    Argentati 2002): an arc cosine alone cannot tell angles below 1e-8 from 0.
    """
    with plain_arithmetic(a.device):
        a, b = plain(a).double(), plain(b).to(a.device).double()
        if a.shape[1] < b.shape[1]:
            a, b = b, a
        cosines = torch.linalg.svdvals(a.mT @ b).clamp(max=1.0)
        sines = torch.linalg.svdvals(b - a @ (a.mT @ b)).flip(0).clamp(max=1.0)
        return torch.where(cosines**2 >= 0.5, sines.asin(), cosines.acos())


def subspace_drift(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The largest principal angle in radians, and √(mean sin²θ): 0 for the same span, 1 for orthogonal ones.

    Of spans of unequal dimensions the smaller counts: one that lies within the other has not drifted.
    """
    return subspace_drifts([(a, b)])[0]


def subspace_drifts(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[float, float]]:
    """`subspace_drift` of every pair; those of equal shapes are computed together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, (a, b) in enumerate(pairs):
        groups.setdefault((a.shape, b.shape, a.dtype, b.dtype, a.device, b.device), []).append(place)
    found: dict[int, tuple[float, float]] = {}
    for places in groups.values():
        step = max(1, TOGETHER // max(one.numel() for one in pairs[places[0]]))
        for start in range(0, len(places), step):
            some = places[start : start + step]
            with plain_arithmetic(pairs[some[0]][1].device):
                found.update(zip(some, _drifts([pairs[place] for place in some]), strict=True))
    return [found[place] for place in range(len(pairs))]


def _drifts(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[float, float]]:
    a, b = (torch.stack([pair[side] for pair in pairs]).to(pairs[0][1].device).double() for side in (0, 1))
    if a.shape[2] < b.shape[2]:
        a, b = b, a
    inner = a.mT @ b
    cosines = torch.linalg.eigvalsh(inner.mT @ inner).clamp(0.0, 1.0)  # squared, the smallest first
    angle = cosines[:, 0].sqrt().acos()
    drift = (1 - cosines).mean(1).sqrt()
    # a square says little of a cosine near 0, and nothing of a sine near 0: those are asked for themselves
    wide, narrow = cosines[:, 0] < NEAR_RIGHT, cosines[:, 0] > NEAR_ZERO
    if bool(wide.any()):
        angle[wide] = torch.linalg.svdvals(inner[wide])[:, -1].clamp(max=1.0).acos()
    if bool(narrow.any()):
        rest = b[narrow] - a[narrow] @ inner[narrow]  # what of the smaller span lies outside the larger
        angle[narrow] = torch.linalg.eigvalsh(rest.mT @ rest)[:, -1].clamp(0.0, 1.0).sqrt().asin()
        drift[narrow] = torch.linalg.matrix_norm(rest) / b.shape[2] ** 0.5
    return list(zip(angle.tolist(), drift.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Intruders:
    """`similarity` has for each leading direction of the tuned weight its best match among the base's."""

    similarity: Tensor
    epsilon: float

    @property
    def count(self) -> int:
        return int((self.similarity < self.epsilon).sum())


def intruder_dimensions(
    weight: Tensor, factors: Factors, *, k: int = INTRUDERS, epsilon: float = SIMILARITY
) -> Intruders:
    """Directions among the `k` leading left singular vectors of W + ΔW that no left singular vector of W resembles.

    Vector u′_j is an intruder if max_i |uᵢᵀu′_j| < ε over all vectors of W (arXiv 2410.21228, algorithm 1). W is the
    weight that training began with, [m, n] as the factors are. Both matrices are decomposed in full, in float64: this
    is for an audit, not for every step. There are fewer than `k` directions if W is smaller. Directions of equal
    singular values are not told apart by any decomposition.
    """
    with plain_arithmetic(weight.device):
        base, update = plain(weight).double(), factors.product().to(weight.device)
        if base.shape != update.shape:
            shapes = f"the weight is {tuple(base.shape)}, its update {tuple(update.shape)}"
            raise ValueError(f"{shapes}: pass the weight as [outputs, inputs]")
        tuned = base + update
        if not bool(base.isfinite().all() & tuned.isfinite().all()):
            raise ValueError("the weight or its update has entries that are not finite: it has no singular vectors")
        known = torch.linalg.svd(base, full_matrices=False).U
        leading = torch.linalg.svd(tuned, full_matrices=False).U[:, :k]
        return Intruders((known.mT @ leading).abs().amax(0), epsilon)
