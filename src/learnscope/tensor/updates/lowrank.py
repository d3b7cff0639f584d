"""A matrix as factors of limited rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype, plain, plain_arithmetic

EXACT = 256
"""Up to this many rows or columns, whichever are fewer, the full decomposition takes no longer than the iteration
(2 CPU threads, float32: 7 ms against 8 at 256 × 256, 340 ms against 50 at 768 × 2304)."""
OVERSAMPLING, ITERATIONS, SEED = 10, 4, 0
CHUNK = 1 << 20


class NotDecomposedError(ArithmeticError):
    """A matrix has no singular values that could be computed."""


@dataclass(frozen=True)
class LowRank:
    """The leading singular directions of a matrix M, whose best approximation of rank r is left[:, :r] @ right[:r]."""

    left: Tensor
    right: Tensor
    values: Tensor
    """The known singular values, in float64 on the CPU: all of them if the decomposition is exact."""
    norm: float
    """‖M‖_F."""
    exact: bool

    @property
    def full_rank(self) -> int:
        return min(self.left.shape[0], self.right.shape[1])

    @property
    def sum_squares(self) -> float:
        return self.norm * self.norm

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @property
    def stable_rank(self) -> float:
        """‖M‖_F²/σ₁²."""
        return (self.norm / float(self.values[0])) ** 2

    def energy(self, rank: int) -> float:
        """Σ_{i≤rank} σᵢ²: how much of ‖M‖_F² the approximation holds."""
        if rank >= self.full_rank:
            return self.sum_squares
        return min(float(self.values[:rank].square().sum()), self.sum_squares)

    def rank_for(self, share: float) -> int | None:
        """The smallest rank that holds this share of ‖M‖_F²; None if it is beyond the known singular values."""
        energy = (self.values / self.norm).square().cumsum(0)
        enough = (energy >= share).nonzero()
        if len(enough):
            return int(enough[0]) + 1
        return self.full_rank if self.exact else None  # rounding may leave an exact sum just below the total

    def add_to(self, old: Tensor, rank: int, out: Tensor) -> None:
        """Write old + the approximation of this rank into `out`, in chunks of rows; later dimensions are flattened."""
        columns = self.right.shape[1]
        step = max(1, CHUNK // columns)
        with plain_arithmetic(self.left.device):
            for start in range(0, len(self.left), step):
                rows = slice(start, start + step)
                part = plain(old[rows]).to(self.left.device, self.left.dtype).reshape(-1, columns)
                part = torch.addmm(part, self.left[rows, :rank], self.right[:rank])
                plain(out[rows]).copy_(part.view(-1, *out.shape[1:]))


def decompose(matrix: Tensor, rank: int) -> LowRank | None:
    """The `rank` leading singular directions, in float32 (float64 for float64); None for a matrix of zeros.

    Exact (LAPACK) up to `EXACT` rows or columns, or where the iteration would span as many. Beyond: randomised
    block Krylov iteration (Musco & Musco 2015, arXiv 1504.05477, algorithm 2) with `OVERSAMPLING` and `ITERATIONS`,
    from a generator of its own, so that equal matrices give equal factors. It captures slightly less energy than the
    best approximation: about 1e-6 less where singular values decay, about 1 % less where they hardly do.
    `NotDecomposedError`: an entry is not finite, or LAPACK does not converge.
    """
    with plain_arithmetic(matrix.device):
        matrix = plain(matrix)
        matrix = matrix.to(arithmetic_dtype(matrix))
        if not matrix.numel():
            return None
        low, high = matrix.aminmax()
        largest = float(torch.maximum(-low, high))
        if largest == 0:
            return None
        if not largest < torch.inf:
            raise NotDecomposedError("an entry is not finite")
        scaled = matrix / largest  # squares neither underflow nor overflow
        # in chunks: six times as fast as vector_norm(dtype=float64)
        parts = [torch.linalg.vector_norm(part.double()) for part in scaled.split(max(1, CHUNK // scaled.shape[1]))]
        norm = float(torch.linalg.vector_norm(torch.stack(parts)))
        tall, width = matrix.shape[0] > matrix.shape[1], rank + OVERSAMPLING
        wide = scaled.mT if tall else scaled
        exact = len(wide) <= max(EXACT, width * (ITERATIONS + 1))
        try:
            left, right, values = _exactly(wide, rank) if exact else _iteratively(wide, rank, width)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # documented, not in its stubs
            raise NotDecomposedError(str(error)) from error
        right *= largest
        if tall:
            left, right = right.mT, left.mT
        return LowRank(left.contiguous(), right.contiguous(), values.cpu() * largest, norm * largest, exact)


def _exactly(wide: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    left, values, right = torch.linalg.svd(wide, full_matrices=False)
    # copies, or slices would keep the whole factors alive
    return left[:, :rank].clone(), right[:rank] * values[:rank, None], values.double()


def _iteratively(wide: Tensor, rank: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    # orthonormal columns that span M Ω, (MMᵀ) M Ω, (MMᵀ)² M Ω, … with Ω drawn once
    generator = torch.Generator(device="cpu").manual_seed(SEED)
    start = torch.randn(wide.shape[1], width, generator=generator, dtype=wide.dtype, device="cpu").to(wide.device)
    blocks: list[Tensor] = [torch.linalg.qr(wide @ start).Q]
    for _ in range(ITERATIONS):
        blocks.append(torch.linalg.qr(wide @ (wide.mT @ blocks[-1])).Q)
    basis: Tensor = torch.linalg.qr(torch.cat(blocks, 1)).Q
    core = basis.mT @ wide
    # the singular vectors of the core from its Gram matrix; in float64, since squaring halves the digits
    gram = torch.zeros(len(core), len(core), dtype=torch.float64, device=core.device)
    for part in core.split(max(1, CHUNK // len(core)), 1):
        gram.addmm_(part.double(), part.double().mT)
    values, vectors = torch.linalg.eigh(gram)
    leading = vectors.flip(1)[:, :rank].to(core.dtype)
    return basis @ leading, leading.mT @ core, values.flip(0)[:rank].clamp(min=0).sqrt()
