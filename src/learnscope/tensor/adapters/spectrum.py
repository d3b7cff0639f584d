"""Singular values of an adapter's update from its factors, and the numbers derived from them.

The update is s·B A with B [m, r] and A [r, n]. It is never built: with B = Q_B R_B and Aᵀ = Q_A R_A its singular
values are those of the small core s·R_B R_Aᵀ. Everything from the factors on is float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.adapters.orthonormal import orthonormal
from learnscope.tensor.context import plain, plain_arithmetic
from learnscope.tensor.features.representation import effective_ranks
from learnscope.tensor.grouping import compute_in_groups

Floats = NDArray[np.float64]
TOLERANCE = 1e-6
"""Singular values at most this share of the largest count as 0 for the rank: what rounding float32 factors leaves."""
TOP = (1, 5, 10)
ZERO = "the update is zero"
NOT_FINITE = "the factors, or their product, are not finite"
DEFICIENT = "infinite: the update has a lower rank than its factors allow"
ONE_VALUE = "there is only one singular value"


@dataclass(frozen=True, slots=True)
class Factors:
    """An update `scaling`·`left`@`right`, minus the `start` it began with: PiSSA and MiLoRA begin with a part of W.

    `start` are factors left₀ [m, r₀] and right₀ [r₀, n] whose product already includes the scaling at the start.
    """

    left: Tensor
    right: Tensor
    scaling: float = 1.0
    start: tuple[Tensor, Tensor] | None = None

    @property
    def rank(self) -> int:
        """The largest rank that the update can have."""
        extra = 0 if self.start is None else self.start[0].shape[1]
        return min(self.left.shape[0], self.right.shape[1], self.left.shape[1] + extra)

    def turned(self) -> Factors:
        """Those of the transposed update."""
        start = None if self.start is None else (self.start[1].mT, self.start[0].mT)
        return Factors(self.right.mT, self.left.mT, self.scaling, start)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Two float64 factors whose product is the update."""
        left, right, scaling = _stack([self])
        return left[0] * scaling[0], right[0]

    def product(self) -> Tensor:
        """The update as a matrix, in float64: for checks and for small matrices only."""
        with plain_arithmetic(self.left.device):
            left, right = self.stacked()
            return left @ right


class Turns:
    """The singular vectors of several cores, decomposed when one of them is asked for: few callers do."""

    def __init__(self, cores: Tensor) -> None:
        self._cores = cores

    @functools.cached_property
    def both(self) -> tuple[Tensor, Tensor]:
        """Left and right ones as columns, [cores, r, k]."""
        with plain_arithmetic(self._cores.device):
            u, _, v = torch.linalg.svd(self._cores, full_matrices=False)
            return u, v.mT


@dataclass(frozen=True, slots=True)
class Side:
    """Singular vectors of one side as Q times those of a core, multiplied only when they are asked for."""

    q: Tensor
    turns: Turns
    side: int
    place: int

    def vectors(self) -> Tensor:
        """As columns, [m, k]."""
        return self.q @ self.turns.both[self.side][self.place]

    def span(self, rank: int) -> Tensor:
        """Orthonormal columns with the span of the first `rank` singular vectors; their memory must not be written."""
        return self.q if rank == self.q.shape[1] else self.q @ self.turns.both[self.side][self.place, :, :rank]


@dataclass(frozen=True, slots=True)
class Decomposed:
    """Singular values in descending order, float64; NaN if the factors are not finite, 0 for rounding error.

    If vectors were asked for, `left` [m, k] and `right` [n, k] hold them as columns.
    """

    values: Tensor
    left_side: Side | None = None
    right_side: Side | None = None

    @property
    def left(self) -> Tensor | None:
        return None if self.left_side is None else self.left_side.vectors()

    @property
    def right(self) -> Tensor | None:
        return None if self.right_side is None else self.right_side.vectors()

    def rank(self, tolerance: float = TOLERANCE) -> int:
        """How many singular values are above `tolerance`·σ₁."""
        return int((self.values > tolerance * self.values[:1]).sum())


def decompose_factors(updates: Sequence[Factors], *, vectors: bool = False) -> list[Decomposed]:
    """The singular values (and vectors) of every update; those of equal shape are computed together."""

    def shapes(update: Factors) -> tuple[object, ...]:
        tensors = (update.left, update.right, *(update.start or ()))
        return tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)

    return compute_in_groups(updates, shapes, lambda group: _decompose_together(group, vectors))


def _stack(updates: Sequence[Factors]) -> tuple[Tensor, Tensor, Tensor]:
    """Factors [updates, m, k] and [updates, k, n] in float64, and the scaling that their products still need.

    With a start, s·B A − B₀A₀ = (s·B − B₀) A + B₀ (A − A₀): unlike [s·B, −B₀] [A; A₀] this is exactly zero where
    nothing has moved, and loses no digits where little has. Ranks that differ allow only the latter form.
    """
    left, right = _wide([update.left for update in updates]), _wide([update.right for update in updates])
    scaling = torch.tensor([update.scaling for update in updates], dtype=torch.float64, device=left.device)
    starts = [update.start for update in updates if update.start is not None]
    if not starts:
        return left, right, scaling
    left0, right0 = (
        torch.stack([plain(factor) for factor in factors]).to(left.device).double()
        for factors in zip(*starts, strict=True)
    )
    left, scaling = left * scaling[:, None, None], torch.ones_like(scaling)
    if left0.shape == left.shape:
        return torch.cat([left - left0, left0], 2), torch.cat([right, right - right0], 1), scaling
    return torch.cat([left, -left0], 2), torch.cat([right, right0], 1), scaling


def _wide(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape as one, in float64, in one pass over them."""
    first = tensors[0]
    wide = torch.empty(len(tensors), *first.shape, dtype=torch.float64, device=first.device)
    torch._foreach_copy_(list(wide.unbind()), [plain(tensor) for tensor in tensors])
    return wide


def _decompose_together(updates: Sequence[Factors], vectors: bool) -> list[Decomposed]:
    with plain_arithmetic(updates[0].left.device):
        left, right, scaling = _stack(updates)
        decomposed = orthonormal if vectors else partial(torch.linalg.qr, mode="r")
        (q_left, r_left), (q_right, r_right) = decomposed(left), decomposed(right.mT)
        core = scaling[:, None, None] * (r_left @ r_right.mT)
        # the small core is not finite where a factor is not; LAPACK would refuse the whole batch
        broken = ~core.isfinite().all((1, 2))
        core = core.where(~broken[:, None, None], 0.0)
        # the rounding error of a product that is zero is bounded by the factors' norms
        sizes = scaling.abs() * torch.linalg.matrix_norm(r_left) * torch.linalg.matrix_norm(r_right)
        floor = core.shape[-1] * torch.finfo(torch.float64).eps * sizes
        values = _cleaned(torch.linalg.svdvals(core), floor, broken).unbind()
        if not vectors:
            return list(map(Decomposed, values))
        turns, places = Turns(core), range(len(values))
        lefts = (Side(q, turns, 0, place) for q, place in zip(q_left.unbind(), places, strict=True))
        rights = (Side(q, turns, 1, place) for q, place in zip(q_right.unbind(), places, strict=True))
        return list(map(Decomposed, values, lefts, rights))


def _cleaned(values: Tensor, floor: Tensor, broken: Tensor) -> Tensor:
    values = values.where(values > floor[:, None], 0.0)
    return values.where(~broken[:, None], torch.nan)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of several spectra: for each name one value per spectrum, and by position why a value is missing."""

    values: dict[str, list[float]]
    reasons: dict[str, dict[int, str]]


def spectrum_numbers(spectra: Sequence[Tensor], *, tolerance: float = TOLERANCE) -> Numbers:
    """Numbers derived from the singular values σ₁ ≥ … ≥ σ_r of each update; r is the largest rank its factors allow.

    | name | meaning |
    |---|---|
    | `largest_sv`, `smallest_sv` | σ₁, σ_r |
    | `spectral_gap`, `leading_gap` | σ₁ − σ_r; σ₁ − σ₂ |
    | `condition_number` | σ₁/σ_r; infinite (and null in a record) if σ_r ≤ tolerance·σ₁ |
    | `numerical_rank`, `rank_utilisation` | how many σ > tolerance·σ₁; the effective rank as a share of r |
    | `effective_rank` | exp(−Σ p ln p), p = σ/Σσ (Roy & Vetterli 2007) |
    | `stable_rank`, `participation_ratio` | Σσ²/σ₁²; (Σσ)²/Σσ² |
    | `nuclear_norm`, `frobenius_norm` | Σσ; √Σσ² |
    | `top1_sv_ratio`, `top5_…`, `top10_…` | Σ_{i≤k} σ²/Σσ²: energy |
    | `top1_nuclear_share`, … | Σ_{i≤k} σ/Σσ |

    A zero update has norms, gaps, and a rank of 0; whatever divides by one of them is NaN, with the reason.

    >>> numbers = spectrum_numbers([torch.tensor([4.0, 2.0], dtype=torch.float64)])
    >>> numbers.values["condition_number"], numbers.values["spectral_gap"], numbers.values["top1_sv_ratio"]
    ([2.0], [2.0], [0.8])
    """
    lengths = np.array([len(values) for values in spectra])
    if not len(lengths):
        return Numbers({}, {})
    table = _table(_padded(spectra).numpy(), lengths, tolerance)
    names, numbers = list(table), np.stack(list(table.values()))
    values = dict(zip(names, numbers.tolist(), strict=True))
    reasons: dict[str, dict[int, str]] = {}
    for row, place in np.argwhere(~np.isfinite(numbers)).tolist():
        name, value = names[row], numbers[row, place]
        reason = DEFICIENT if math.isinf(value) else ONE_VALUE if name == "leading_gap" else ZERO
        broken = math.isnan(values["largest_sv"][place])
        reasons.setdefault(name, {})[place] = NOT_FINITE if broken else reason
    return Numbers(values, reasons)


def _padded(spectra: Sequence[Tensor]) -> Tensor:
    """The values [spectra, longest] in float64 on the CPU, with zeros after the shorter ones."""
    if len({len(values) for values in spectra}) == 1:
        return torch.stack(list(spectra)).cpu().double()
    return torch.nn.utils.rnn.pad_sequence([values.cpu().double() for values in spectra], batch_first=True)


def _table(sigma: Floats, lengths: NDArray[np.int64], tolerance: float) -> dict[str, Floats]:
    """Every number from the values [spectra, longest], padded with zeros, which add nothing to the sums.

    NumPy, as its calls take a fifth of torch's time on small arrays.
    """
    largest, smallest = sigma[:, 0], sigma[np.arange(len(sigma)), lengths - 1]
    second = sigma[:, 1] if sigma.shape[1] > 1 else np.full_like(largest, np.nan)
    broken = np.isnan(largest)
    with np.errstate(all="ignore"):  # of a zero update, or one that is not finite
        scaled = sigma / largest[:, None]  # so that squares neither underflow nor overflow; NaN for a zero update
        squares = scaled * scaled
        total, energy = scaled.sum(1), squares.sum(1)
        rank = effective_ranks(torch.from_numpy(scaled)).numpy()
        above = np.count_nonzero(sigma > tolerance * largest[:, None], 1)
        condition = np.where(smallest > tolerance * largest, largest / smallest, np.inf)
        table = {
            "largest_sv": largest,
            "smallest_sv": smallest,
            "spectral_gap": largest - smallest,
            "leading_gap": np.where(lengths > 1, largest - second, np.nan),
            "condition_number": np.where(broken | (largest == 0), np.nan, condition),
            "numerical_rank": np.where(broken, np.nan, above),
            "effective_rank": rank,
            "rank_utilisation": rank / lengths,
            "stable_rank": energy,
            "participation_ratio": total * total / energy,
            "nuclear_norm": np.where(largest == 0, 0.0, total * largest),
            "frobenius_norm": np.where(largest == 0, 0.0, np.sqrt(energy) * largest),
        }
        for k in TOP:
            table[f"top{k}_sv_ratio"] = squares[:, :k].sum(1) / energy
            table[f"top{k}_nuclear_share"] = scaled[:, :k].sum(1) / total
    return table
