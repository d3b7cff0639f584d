"""Singular values of an adapter's update from its factors, and the numbers that are read off them.

The update is s·B A with B [m, r] and A [r, n]. It is never built: with B = Q_B R_B and Aᵀ = Q_A R_A its singular
values are those of the small core s·R_B R_Aᵀ. Everything from the factors on is float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic
from learnscope.tensor.features.representation import effective_ranks

TOLERANCE = 1e-6
"""Singular values at most this share of the largest count as 0 for the rank: what rounding float32 factors leaves."""
TOP = (1, 5, 10)
ZERO = "the update is zero"
NOT_FINITE = "the factors, or their product, are not finite"
DEFICIENT = "infinite: the update has a lower rank than its factors allow"
ONE_VALUE = "there is only one singular value"


@dataclass(frozen=True, slots=True)
class Factors:
    """An update `scaling`·`left`@`right`, less the `start` it began with: PiSSA and MiLoRA begin with a part of W.

    `start` are factors whose product already holds the scaling of then: left₀ [m, r₀] and right₀ [r₀, n].
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

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Two float64 factors whose product is the update."""
        left, right, scaling = _stack([self])
        return left[0] * scaling[0], right[0]

    def product(self) -> Tensor:
        """The update as a matrix, in float64: for checks and for small matrices only."""
        with plain_arithmetic(self.left.device):
            left, right = self.stacked()
            return left @ right


@dataclass(frozen=True, slots=True)
class Side:
    """Singular vectors of one side as Q·turn, which are multiplied only where they are asked for."""

    q: Tensor
    turn: Tensor

    def vectors(self) -> Tensor:
        """As columns, [m, k]."""
        return self.q @ self.turn

    def span(self, rank: int) -> Tensor:
        """Orthonormal columns with the span of the first `rank` singular vectors, in memory of their own."""
        return self.q.clone() if rank == self.turn.shape[1] == self.q.shape[1] else self.q @ self.turn[:, :rank]


@dataclass(frozen=True, slots=True)
class Decomposed:
    """Singular values in descending order, float64; NaN if the factors are not finite, 0 where they are rounding.

    With vectors, if they were asked for: `left` [m, k] and `right` [n, k] hold them as columns.
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
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, update in enumerate(updates):
        tensors = (update.left, update.right, *(update.start or ()))
        groups.setdefault(tuple((one.shape, one.dtype, one.device) for one in tensors), []).append(place)
    found: dict[int, Decomposed] = {}
    for places in groups.values():
        with plain_arithmetic(updates[places[0]].left.device):
            left, right, scaling = _stack([updates[place] for place in places])
            found.update(zip(places, _batch(left, right, scaling, vectors), strict=True))
    return [found[place] for place in range(len(updates))]


def _stack(updates: Sequence[Factors]) -> tuple[Tensor, Tensor, Tensor]:
    """Factors [updates, m, k] and [updates, k, n] in float64, and what their products are still to be multiplied by.

    With a start, s·B A − B₀A₀ = (s·B − B₀) A + B₀ (A − A₀): unlike [s·B, −B₀] [A; A₀] this is exactly zero where
    nothing has moved, and loses no digits where little has. Ranks that differ leave only the latter.
    """
    left = torch.stack([plain(one.left) for one in updates]).double()
    right = torch.stack([plain(one.right) for one in updates]).double()
    scaling = torch.tensor([one.scaling for one in updates], dtype=torch.float64, device=left.device)
    starts = [one.start for one in updates if one.start is not None]
    if not starts:
        return left, right, scaling
    left0 = torch.stack([plain(one) for one, _ in starts]).to(left.device).double()
    right0 = torch.stack([plain(one) for _, one in starts]).to(left.device).double()
    left, scaling = left * scaling[:, None, None], torch.ones_like(scaling)
    if left0.shape == left.shape:
        return torch.cat([left - left0, left0], 2), torch.cat([right, right - right0], 1), scaling
    return torch.cat([left, -left0], 2), torch.cat([right, right0], 1), scaling


def _batch(left: Tensor, right: Tensor, scaling: Tensor, vectors: bool) -> list[Decomposed]:
    mode = "reduced" if vectors else "r"
    q_left, r_left = torch.linalg.qr(left, mode=mode)
    q_right, r_right = torch.linalg.qr(right.mT, mode=mode)
    core = scaling[:, None, None] * (r_left @ r_right.mT)
    # asked of the small core, which is not finite where a factor is not; LAPACK would refuse the whole batch
    broken = ~core.isfinite().all((1, 2))
    core = core.where(~broken[:, None, None], 0.0)
    # what rounding makes of a product that is zero: the factors' norms tell how large that can be
    sizes = scaling.abs() * torch.linalg.matrix_norm(r_left) * torch.linalg.matrix_norm(r_right)
    floor = core.shape[-1] * torch.finfo(torch.float64).eps * sizes
    if not vectors:
        values = torch.linalg.svdvals(core)
        return [Decomposed(one) for one in _cleaned(values, floor, broken).unbind()]
    u, values, v = torch.linalg.svd(core, full_matrices=False)
    lefts = [Side(q, turn) for q, turn in zip(q_left.unbind(), u.unbind(), strict=True)]
    rights = [Side(q, turn) for q, turn in zip(q_right.unbind(), v.mT.unbind(), strict=True)]
    return [Decomposed(*one) for one in zip(_cleaned(values, floor, broken).unbind(), lefts, rights, strict=True)]


def _cleaned(values: Tensor, floor: Tensor, broken: Tensor) -> Tensor:
    values = values.where(values > floor[:, None], 0.0)
    return values.where(~broken[:, None], torch.nan)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of several spectra: for each name one value a spectrum, and by place why one has none."""

    values: dict[str, list[float]]
    reasons: dict[str, dict[int, str]]


def spectrum_numbers(spectra: Sequence[Tensor], *, tolerance: float = TOLERANCE) -> Numbers:
    """What the singular values σ₁ ≥ … ≥ σ_r of each update say; r is the largest rank its factors allow.

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

    A zero update has norms, gaps, and a rank of 0; all that divides by one of them is NaN, with the reason.

    >>> found = spectrum_numbers([torch.tensor([4.0, 2.0], dtype=torch.float64)])
    >>> found.values["condition_number"], found.values["spectral_gap"], found.values["top1_sv_ratio"]
    ([2.0], [2.0], [0.8])
    """
    lengths = torch.tensor([len(values) for values in spectra])
    if not len(lengths):
        return Numbers({}, {})
    sigma = torch.nn.utils.rnn.pad_sequence([values.cpu().double() for values in spectra], batch_first=True)
    with plain_arithmetic(sigma.device):
        table = {name: values.tolist() for name, values in _table(sigma, lengths, tolerance).items()}
    reasons: dict[str, dict[int, str]] = {}
    for name, values in table.items():
        for place, value in enumerate(values):
            if not math.isfinite(value):
                reasons.setdefault(name, {})[place] = _reason(name, value, table["largest_sv"][place])
    return Numbers(table, reasons)


def _table(sigma: Tensor, lengths: Tensor, tolerance: float) -> dict[str, Tensor]:
    """Every number from the values [spectra, longest], which zeros fill up: a zero adds to none of the sums."""
    largest, smallest = sigma[:, 0], sigma.gather(1, lengths[:, None] - 1).squeeze(1)
    second = sigma[:, 1] if sigma.shape[1] > 1 else torch.full_like(largest, torch.nan)
    scaled = sigma / largest[:, None]  # so that squares neither vanish nor overflow; NaN for a zero update
    total, energy = scaled.sum(1), scaled.square().sum(1)
    rank = effective_ranks(scaled)
    broken = largest.isnan()
    above = (sigma > tolerance * largest[:, None]).sum(1).double().where(~broken, torch.nan)
    held = smallest > tolerance * largest
    undefined = broken | (largest == 0)
    table = {
        "largest_sv": largest,
        "smallest_sv": smallest,
        "spectral_gap": largest - smallest,
        "leading_gap": (largest - second).where(lengths > 1, torch.nan),
        "condition_number": (largest / smallest).where(held, torch.inf).where(~undefined, torch.nan),
        "numerical_rank": above,
        "effective_rank": rank,
        "rank_utilisation": rank / lengths,
        "stable_rank": energy,
        "participation_ratio": total.square() / energy,
        "nuclear_norm": (total * largest).where(largest != 0, 0.0),
        "frobenius_norm": (energy.sqrt() * largest).where(largest != 0, 0.0),
    }
    for k in TOP:
        table[f"top{k}_sv_ratio"] = scaled[:, :k].square().sum(1) / energy
        table[f"top{k}_nuclear_share"] = scaled[:, :k].sum(1) / total
    return table


def _reason(name: str, value: float, largest: float) -> str:
    """Why a number is not finite."""
    if math.isnan(largest):
        return NOT_FINITE
    if math.isinf(value):
        return DEFICIENT
    return ONE_VALUE if name == "leading_gap" else ZERO
