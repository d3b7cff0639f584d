"""Singular values of whole matrices in float64: all of them, or the largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic

TOGETHER = 1 << 20
"""Entries of matrices of equal shape that are decomposed by one call: for small ones the call takes longest."""
SMALL = 512
"""Up to this many rows or columns, whichever are fewer, all values take no longer than the largest."""
EXTRA, SEED = 8, 0
RESIDUAL = 1e-4
"""The iteration ends when σ₁·this is left of every wanted triplet: the error of a value is about the square of it."""
CHECKS = (4, 6, 8, 10, 12, 16, 20, 24, 32, 48)
"""Numbers of blocks after which it looks whether that is so; the last is the limit."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The largest singular values in descending order, and ‖M‖_F.

    None of them is above the true value of its rank, and each is within `error`·σ₁ of a true one. Where values lie
    apart it is far nearer, about the square of `error` over their distance as a share of σ₁.
    """

    values: Tensor
    norm: float
    error: float


def all_values(matrices: Sequence[Tensor]) -> list[Tensor | None]:
    """Every singular value of every matrix, descending; 0 where it is rounding; None if an entry is not finite.

    One matrix at a time is copied to float64, or a few small ones of equal shape.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, one in enumerate(matrices):
        groups.setdefault((one.shape, one.device), []).append(place)
    found: dict[int, Tensor | None] = {}
    for places in groups.values():
        step = max(1, TOGETHER // max(1, matrices[places[0]].numel()))
        for start in range(0, len(places), step):
            some = places[start : start + step]
            found.update(zip(some, _decomposed([matrices[place] for place in some]), strict=True))
    return [found[place] for place in range(len(matrices))]


def _decomposed(matrices: Sequence[Tensor]) -> list[Tensor | None]:
    with plain_arithmetic(matrices[0].device):
        copies = [plain(one).double() for one in matrices]
        wide = copies[0][None] if len(copies) == 1 else torch.stack(copies)
        finite = wide.isfinite().all(2).all(1)
        if not bool(finite.all()):  # LAPACK would refuse the others with it
            wide = wide.where(finite[:, None, None], 0.0)
        values = torch.linalg.svdvals(wide)
        values = _without_rounding(values, wide).cpu()
        return [one if good else None for one, good in zip(values, finite.tolist(), strict=True)]


def _without_rounding(values: Tensor, matrix: Tensor) -> Tensor:
    """0 where a value is no larger than what rounding makes of 0."""
    floor = max(matrix.shape[-2:]) * torch.finfo(torch.float64).eps * values[..., :1]
    return values.where(values > floor, 0.0)


def is_small(matrix: Tensor, count: int) -> bool:
    """Whether all values are computed even where only the `count` largest are wanted."""
    return min(matrix.shape) <= max(SMALL, (count + EXTRA) * CHECKS[0] * 2)


def leading_values(matrix: Tensor, count: int) -> Leading | None:
    """The `count` largest singular values, or fewer if there are fewer; None if an entry is not finite.

    Block Golub–Kahan–Lanczos bidiagonalisation in float64 with full reorthogonalisation, from a random block that a
    generator of its own draws, so that equal matrices give equal values: M V = U B, Mᵀ U = V Bᵀ + a rest that bounds
    the error. All values are computed instead where `matrix` is small. A matrix with many values close together, such
    as one of pure noise, may reach the limit of the iteration: `error` tells.
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
        wide = wide / largest  # squares neither vanish nor overflow
        norm = float(torch.linalg.vector_norm(wide)) * largest
        width = count + EXTRA
        if is_small(wide, count):
            values = _without_rounding(torch.linalg.svdvals(wide), wide)
            return Leading(values[:count].cpu() * largest, norm, 0.0)
        values, error = _iterated(wide, count, width)
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
    """Orthonormal columns that span the block less the basis; any others orthogonal to it where nothing is left."""
    found = block
    for _ in range(3):  # what is left of a block within the basis is rounding, and has to be cleaned again
        found = torch.linalg.qr(found - basis @ (basis.mT @ found)).Q
    return found


def _grown(core: Tensor, coupling: Tensor, corner: Tensor) -> Tensor:
    """The block bidiagonal matrix with one more block on its diagonal, and the coupling above it."""
    size, width = len(core), len(corner)
    grown = core.new_zeros(size + width, size + width)
    grown[:size, :size] = core
    grown[size - len(coupling) if size else 0 : size, size:] = coupling if size else 0
    grown[size:, size:] = corner
    return grown
