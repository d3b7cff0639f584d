"""Singular values of whole matrices in float64, all of them or the largest; the power law in the tail of a spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic
from learnscope.tensor.grouping import compute_in_groups

TOGETHER = 1 << 20
"""Entries of matrices of equal shape that are decomposed by one call: for small ones the call itself takes longest."""
SMALL = 512
"""Up to this many rows or columns, whichever are fewer, computing all values takes no longer than the largest."""
EXTRA, SEED = 8, 0
RESIDUAL = 1e-4
"""The iteration ends when all triplets have residuals below this times σ₁; the error is about its square."""
CHECKS = (4, 6, 8, 10, 12, 16, 20, 24, 32, 48)
"""Numbers of blocks after which convergence is checked; the last is the limit."""
FEWEST = 50


@dataclass(frozen=True, slots=True)
class Leading:
    """The largest singular values in descending order, and ‖M‖_F.

    Each is within `error`·σ₁ of a true one and not above that of its rank; far closer where values are well separated.
    """

    values: Tensor
    norm: float
    error: float


def all_values(matrices: Sequence[Tensor]) -> list[Tensor | None]:
    """Every singular value of every matrix, descending; 0 if it is rounding error; None if an entry is not finite."""
    return compute_in_groups(
        matrices,
        lambda matrix: (matrix.shape, matrix.device),
        _decomposed,
        at_once=lambda matrix: TOGETHER // max(1, matrix.numel()),
    )


def _decomposed(matrices: Sequence[Tensor]) -> list[Tensor | None]:
    with plain_arithmetic(matrices[0].device):
        copies = [plain(matrix).double() for matrix in matrices]
        wide = copies[0][None] if len(copies) == 1 else torch.stack(copies)
        finite = wide.isfinite().all(2).all(1)
        if not bool(finite.all()):  # LAPACK would refuse the whole batch
            wide = wide.where(finite[:, None, None], 0.0)
        values = torch.linalg.svdvals(wide)
        values = _without_rounding(values, wide).cpu()
        return [own if good else None for own, good in zip(values, finite.tolist(), strict=True)]


def _without_rounding(values: Tensor, matrix: Tensor) -> Tensor:
    """0 where a value is no larger than the rounding error of a 0."""
    floor = max(matrix.shape[-2:]) * torch.finfo(torch.float64).eps * values[..., :1]
    return values.where(values > floor, 0.0)


def is_small(matrix: Tensor, count: int) -> bool:
    """Whether all values are computed even if only the `count` largest are wanted."""
    return min(matrix.shape) <= max(SMALL, (count + EXTRA) * CHECKS[0] * 2)


def leading_values(matrix: Tensor, count: int) -> Leading | None:
    """The `count` largest singular values, or fewer if there are fewer; None if an entry is not finite.

    Block Golub–Kahan–Lanczos bidiagonalisation in float64 with full reorthogonalisation: M V = U B, Mᵀ U = V Bᵀ + a
    rest that bounds the error. The random start has a fixed seed, so that equal matrices give equal values. If many
    values are close together, as in pure noise, it may reach the limit of the iteration: see `error`.
    """
    with plain_arithmetic(matrix.device):
        wide = plain(matrix).double()
        wide = wide.mT if wide.shape[0] > wide.shape[1] else wide
        low, high = wide.aminmax()
        largest = float(torch.maximum(-low, high))
        if not largest < torch.inf:
            return None
        if largest == 0:
            return Leading(torch.zeros(min(count, len(wide)), dtype=torch.float64), 0.0, 0.0)
        wide = wide / largest  # squares neither underflow nor overflow
        norm = float(torch.linalg.vector_norm(wide)) * largest
        if is_small(wide, count):
            values, error = _without_rounding(torch.linalg.svdvals(wide), wide)[:count], 0.0
        else:
            values, error = _iterated(wide, count, count + EXTRA)
        return Leading(values.cpu() * largest, norm, error)


def _iterated(wide: Tensor, count: int, width: int) -> tuple[Tensor, float]:
    generator = torch.Generator(device="cpu").manual_seed(SEED)
    start = torch.randn(wide.shape[1], width, generator=generator, dtype=torch.float64, device="cpu").to(wide.device)
    right = torch.linalg.qr(start).Q
    left = wide.new_empty(len(wide), 0)
    most = min(CHECKS[-1], len(wide) // width)
    core = wide.new_zeros(0, 0)
    coupling = wide.new_zeros(0, width)
    for block in range(1, most + 1):
        # M V_k = U_(k-1) S_kᵀ + U_k R_k
        image = wide @ right[:, -width:]
        fresh = _orthogonal(image, left)
        core = _grown(core, coupling.mT, fresh.mT @ image)
        left = torch.cat([left, fresh], 1)
        # Mᵀ U_k = V_k R_kᵀ + V_(k+1) S_(k+1)
        image = wide.mT @ fresh
        fresh = _orthogonal(image, right)
        coupling = fresh.mT @ image
        if block in CHECKS or block == most:
            u, values, _ = torch.linalg.svd(core)
            rest = torch.linalg.vector_norm(coupling @ u[-width:, :count], dim=0)
            error = float(rest.max() / values[0])
            if error <= RESIDUAL or block == most:
                break
        right = torch.cat([right, fresh], 1)
    return _without_rounding(values[:count], wide), error


def _orthogonal(block: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal columns that span the block minus the basis; arbitrary orthogonal ones where nothing is left."""
    for _ in range(3):  # a block within the basis leaves only rounding error, which has to be made orthogonal again
        block = torch.linalg.qr(block - basis @ (basis.mT @ block)).Q
    return block


def _grown(core: Tensor, coupling: Tensor, corner: Tensor) -> Tensor:
    """The block bidiagonal matrix with one more block on its diagonal, and the coupling above it."""
    size, width = len(core), len(corner)
    grown = core.new_zeros(size + width, size + width)
    grown[:size, :size] = core
    grown[size - len(coupling) if size else 0 : size, size:] = coupling if size else 0
    grown[size:, size:] = corner
    return grown


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """ρ(λ) ∝ λ^−α above `smallest`, for `tail` eigenvalues; `distance` is the Kolmogorov–Smirnov distance there."""

    alpha: float
    smallest: float
    distance: float
    tail: int


def power_law(eigenvalues: Tensor) -> PowerLaw | None:
    """α = 1 + n/Σ ln(λ/λ_min) over the n eigenvalues from λ_min on (Clauset et al. 2009; Martin & Mahoney).

    λ_min is the eigenvalue for which the tail is closest to its fitted law. Eigenvalues are those of WᵀW, that is σ².
    None if fewer than 50 are positive, one is not finite, or all are equal.
    """
    with plain_arithmetic(eigenvalues.device):
        values = plain(eigenvalues).double().cpu()
        if not bool(values.isfinite().all()):
            return None
        values = values[values > 0].sort().values
        if len(values) < FEWEST:
            return None
        logs, best = values.log(), None
        first_of_equals = torch.cat([torch.tensor([True]), values[1:] > values[:-1]])
        for start in first_of_equals.nonzero().flatten().tolist():
            tail = logs[start:] - logs[start]
            n, total = len(tail), float(tail.sum())
            if total == 0:  # the rest are all equal: no slope
                continue
            alpha = 1 + n / total
            expected = -torch.expm1((1 - alpha) * tail)
            ranks = torch.arange(n + 1, dtype=torch.float64) / n
            distance = float(torch.maximum(ranks[1:] - expected, expected - ranks[:-1]).max())
            if best is None or distance < best.distance:
                best = PowerLaw(alpha, float(values[start]), distance, n)
        return best
