"""The comparison of large logits in float32, a few rows at a time: three times as fast as in float64.

Per entry in float32. With d = variant − reference and e = exp(reference − its largest): D = Σ e d/Σ e,
Φ = Σ e (e^d − 1 − d)/Σ e, and the divergence is ln(1 + D + Φ) − D. Rows in which that loses digits (a common shift of
all logits, a likely class that becomes unlikely), overflows or is not finite come back as NaN, and are left to the
slower float64 way. Nothing is compiled: that takes twenty seconds, which an audit of a small model never gets back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FUSED_FROM = 1 << 20
"""Logits from which on it is done like this."""

LOST = 0.02
"""Share of Φ below which the divergence has lost too many digits to the shift."""

SMALLEST = 1e-30
"""Φ below which float32 may have rounded its terms to a few bits, or to 0."""

UNLIKE = 16
"""Ratio of the norms of two rows above which their cosine has lost too many digits to the larger one."""

PIECE = 512
"""Logits whose maximum is taken together."""

BLOCK = 1 << 17
"""Logits that are compared at a time on a CPU: all that is computed of them stays in the cache."""
ACCELERATOR_BLOCK = 1 << 24

NEAR = 0.25
"""|d| below which e^d − 1 − d is a series: computed directly, it would lose the digits of a small d."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_COEFFICIENTS = [1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040]
"""Of e^x − 1 − x = x²(1/2 + x/6 + …), to 1e-8 below `NEAR`."""


@dataclass(frozen=True)
class RowFacts:
    """What the comparison needs of each row of the reference, computed once for all variants."""

    top: Tensor
    """The largest logit, [rows, 1], float32."""
    total: Tensor
    """Σ exp(logit − top), float64."""
    squares: Tensor
    first: Tensor
    """The first index of the largest logit."""


@dataclass(frozen=True)
class FusedRows:
    """KL, cosine and mean squared error, [3, rows], NaN where the slower way is needed; the variant's top-1; and the
    logarithm of the sum of its exponentials, NaN where the slower way is needed."""

    numbers: Tensor
    first: Tensor
    log_total: Tensor


def row_facts(logits: Tensor) -> RowFacts | None:
    """The facts of the rows of large logits; None where this does not apply."""
    fits = logits.ndim == 2 and logits.shape[1] > 1 and logits.dtype in _DTYPES
    if not fits or logits.numel() < FUSED_FROM:
        return None
    top = logits.amax(1, keepdim=True).float()
    sums = torch.empty(2, len(logits), dtype=torch.float64, device=logits.device)
    for rows in _blocks(logits):
        wide = logits[rows].to(torch.float32, copy=True)
        sums[1, rows] = (wide * wide).sum(1, dtype=torch.float64)
        sums[0, rows] = wide.sub_(top[rows]).exp_().sum(1, dtype=torch.float64)
    return RowFacts(top, sums[0], sums[1], first_largest(logits))


def fused_comparison(reference: Tensor, variant: Tensor, facts: RowFacts) -> FusedRows:
    """How far the variant's rows are from the reference's, whose `facts` these are."""
    shifted, curved, error, growth = _sums(reference, variant, facts.top)
    shift, curve = shifted / facts.total, curved / facts.total
    kl = torch.log1p(shift + curve) - shift
    # the sums are accurate to 1e-7, but 1 + D + Φ cancels where likely classes became unlikely
    left = (1 + shift + curve).clamp(max=1)
    lost = (kl * left < LOST * curve) | ((curve < SMALLEST) & (error > 0))
    before, after = facts.squares.sqrt(), (facts.squares + growth).sqrt()
    cosine = 1 - (error - (growth / (before + after)).square()) / (2 * before * after)
    unlike = torch.maximum(before, after) > UNLIKE * torch.minimum(before, after)
    log_total = facts.top.squeeze(1).double() + facts.total.log() + torch.log1p(shift + curve)
    kl, cosine = kl.masked_fill(lost, torch.nan), cosine.clamp(-1, 1).masked_fill(unlike, torch.nan)
    numbers = torch.stack([kl, cosine, error / reference.shape[1]])
    return FusedRows(numbers, first_largest(variant), log_total.masked_fill(lost, torch.nan))


def _blocks(logits: Tensor) -> list[slice]:
    size = BLOCK if logits.device.type == "cpu" else ACCELERATOR_BLOCK
    step = max(1, size // logits.shape[1])
    return [slice(start, start + step) for start in range(0, len(logits), step)]


def _sums(reference: Tensor, variant: Tensor, top: Tensor) -> Tensor:
    """Σ e d, Σ e (e^d − 1 − d), Σ d² and Σ (b² − a²) of each row, [4, rows]."""
    blocks = _blocks(reference)
    found = torch.empty(4, len(reference), dtype=torch.float64, device=reference.device)
    # the same memory for every block: fresh pages would take as long as the arithmetic
    shape = (blocks[0].stop if blocks else 0, reference.shape[1])
    work = [torch.empty(shape, dtype=torch.float32, device=reference.device) for _ in range(4)]
    for rows in blocks:
        a, b = reference[rows].float(), variant[rows].float()
        d, e, series, spare = (each[: len(a)] for each in work)
        torch.sub(b, a, out=d)
        torch.sub(a, top[rows], out=e).exp_()
        found[0, rows] = torch.mul(e, d, out=spare).sum(1, dtype=torch.float64)
        found[3, rows] = torch.add(a, b, out=spare).mul_(d).sum(1, dtype=torch.float64)
        found[1, rows] = _curve(d, series, spare).mul_(e).sum(1, dtype=torch.float64)
        found[2, rows] = d.square_().sum(1, dtype=torch.float64)
    return found


def _curve(d: Tensor, series: Tensor, spare: Tensor) -> Tensor:
    """e^d − 1 − d, in one of the last two, which are overwritten."""
    series.fill_(_COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        series.mul_(d).add_(coefficient)
    series.mul_(d).mul_(d)
    if bool(torch.abs(d, out=spare).amax() < NEAR):
        return series
    near = spare < NEAR
    return torch.where(near, series, torch.expm1(d, out=spare).sub_(d), out=series)


def first_largest(logits: Tensor) -> Tensor:
    """The first index of each row's largest logit, -1 if one is NaN: `argmax` in a sixth of the time on a CPU."""
    length = logits.shape[1]
    pieces = length // PIECE
    if pieces < 2 or not (logits.is_cpu and logits.is_contiguous()):
        return torch.where(logits.isnan().any(1), -1, logits.argmax(1))
    # the maximum of every piece of a row first, which is fast, then the index within the best piece
    body = logits[:, : pieces * PIECE].unflatten(1, (pieces, PIECE)).amax(2)
    tops = torch.cat([body, logits[:, pieces * PIECE :].amax(1, keepdim=True)], 1) if length % PIECE else body
    begin = tops.argmax(1) * PIECE
    indices = (begin[:, None] + torch.arange(PIECE)).clamp_(max=length - 1)
    offset = logits.gather(1, indices).argmax(1)
    return torch.where(tops.isnan().any(1), -1, begin + offset)
