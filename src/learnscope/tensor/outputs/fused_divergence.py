"""The comparison of large logits in float32, a few rows at a time: three times as fast as in float64.

Per entry in float32. With d = variant − reference and e = exp(reference − its largest): D = Σ e d/Σ e,
Φ = Σ e (e^d − 1 − d)/Σ e, and the divergence is ln(1 + D + Φ) − D. Rows in which that loses digits (a common shift of
all logits, a likely class that becomes unlikely), overflows or is not finite come back as NaN, and are left to the
slower float64 way. Nothing is compiled by torch: that takes twenty seconds, which an audit of a small model never gets
back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from learnscope import native
from learnscope.tensor.host import arrays_of

FUSED_FROM = 1 << 16
"""Logits from which on it is done like this."""

LOST = 0.02
"""Share of Φ below which the divergence has lost too many digits to the shift."""

SMALLEST = 1e-30
"""Φ below which float32 may have rounded its terms to a few bits, or to 0."""

UNLIKE = 16
"""Ratio of the norms of two rows above which their cosine has lost too many digits to the larger one."""

PIECE = 512
"""Logits whose maximum is taken together."""

BLOCK = 1 << 18
"""Logits that are compared at a time on a CPU: all that is computed of them stays in the cache."""
HOST_BLOCK = 1 << 22
"""Logits that a kernel in C compares at a time, whose exponentials are not kept: enough work for all threads."""
ACCELERATOR_BLOCK = 1 << 24

NEAR = 0.25
"""|d| below which e^d − 1 − d is always a series: computed directly, it would lose the digits of a small d."""

SUMMED, FEW_SUMS = 128, 16
"""Entries that are added in float32, where a row has this many such sums: these are added in float64, so that their
errors average out, in a ninth of the time of adding all entries there."""

KEPT_EXPONENTIALS = 1 << 25
"""Logits up to which exp(reference − its largest) is kept for all variants: 128 MB at most."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TERMS = ((0.045, 4), (NEAR, 6), (1.0, 10))
"""How many terms of e^x − 1 − x = x²(1/2 + x/6 + …) are needed up to this |x|, to 1e-8."""
_FEW = dict(_TERMS)[NEAR]
"""Terms where some |x| is beyond all of these: only those below `NEAR` are then taken of the series."""
_COEFFICIENTS = torch.tensor([1 / math.factorial(n + 2) for n in range(_TERMS[-1][1])], dtype=torch.float64)


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
    exponentials: Tensor | None = None
    """exp(logit − top), float32, where that is kept."""


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
    kept = torch.empty_like(logits, dtype=torch.float32) if logits.numel() <= KEPT_EXPONENTIALS else None
    for rows in _blocks(logits):
        wide = logits[rows].to(torch.float32, copy=True)
        sums[1, rows] = _summed(wide * wide)
        sums[0, rows] = _summed(wide.sub_(top[rows]).exp_())
        if kept is not None:
            kept[rows] = wide
    return RowFacts(top, sums[0], sums[1], first_largest(logits), kept)


def fused_comparison(reference: Tensor, variant: Tensor, facts: RowFacts) -> FusedRows:
    """How far the variant's rows are from the reference's, whose `facts` these are."""
    (shifted, curved, error, growth), first = _sums(reference, variant, facts)
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
    return FusedRows(numbers, first, log_total.masked_fill(lost, torch.nan))


def _blocks(logits: Tensor, host_block: int = BLOCK) -> list[slice]:
    size = host_block if logits.device.type == "cpu" else ACCELERATOR_BLOCK
    step = max(1, size // logits.shape[1])
    return [slice(start, start + step) for start in range(0, len(logits), step)]


def _sums(reference: Tensor, variant: Tensor, facts: RowFacts) -> tuple[Tensor, Tensor]:
    """Σ e d, Σ e (e^d − 1 − d), Σ d² and Σ (b² − a²) of each row, [4, rows]; the variant's first largest."""
    if native.kernels is None:
        return _sums_in_blocks(reference, variant, facts), first_largest(variant)
    blocks = [slice(None)] if facts.exponentials is not None else _blocks(reference, HOST_BLOCK)
    parts = [_host_sums(reference[rows], variant[rows], facts, rows) for rows in blocks]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not parts:
        return _sums_in_blocks(reference, variant, facts), first_largest(variant)
    sums, first = zip(*known, strict=True)
    return torch.cat(sums, 1), torch.cat(first)


def _host_sums(reference: Tensor, variant: Tensor, facts: RowFacts, rows: slice) -> tuple[Tensor, Tensor] | None:
    """The same of some rows by a kernel in C; None where it cannot read them."""
    a, b = reference.float(), variant.float()
    e = torch.sub(a, facts.top[rows]).exp_() if facts.exponentials is None else facts.exponentials[rows]
    arrays = arrays_of([a, b, e])
    if native.kernels is None or arrays is None:
        return None
    out, first = np.empty((4, len(a))), np.empty(len(a), np.int64)
    try:
        native.kernels.divergence_sums(arrays[0], arrays[1], arrays[2], out, first, torch.get_num_threads())
    except (TypeError, ValueError):  # rows with gaps
        return None
    return torch.from_numpy(out), torch.from_numpy(first)


def _sums_in_blocks(reference: Tensor, variant: Tensor, facts: RowFacts) -> Tensor:
    blocks = _blocks(reference)
    found = torch.empty(4, len(reference), dtype=torch.float64, device=reference.device)
    # the same memory for every block: fresh pages would take as long as the arithmetic
    shape = (blocks[0].stop if blocks else 0, reference.shape[1])
    work = [torch.empty(shape, dtype=torch.float32, device=reference.device) for _ in range(4)]
    coefficients = list(_COEFFICIENTS.to(reference.device, torch.float32))
    for rows in blocks:
        a, b = reference[rows].float(), variant[rows].float()
        d, own, series, spare = (each[: len(a)] for each in work)
        torch.sub(b, a, out=d)
        e = torch.sub(a, facts.top[rows], out=own).exp_() if facts.exponentials is None else facts.exponentials[rows]
        found[0, rows] = _summed(torch.mul(e, d, out=spare))
        found[3, rows] = _summed(torch.add(a, b, out=spare).mul_(d))
        found[1, rows] = _summed(_curve(d, series, spare, coefficients).mul_(e))
        found[2, rows] = _summed(d.square_())
    return found


def _summed(values: Tensor) -> Tensor:
    """The sum of each row in float64, of short sums in float32."""
    pieces = values.shape[1] // SUMMED
    if pieces < FEW_SUMS:
        return values.sum(1, dtype=torch.float64)
    total: Tensor = values[:, : pieces * SUMMED].unflatten(1, (pieces, SUMMED)).sum(2).sum(1, dtype=torch.float64)
    return total if pieces * SUMMED == values.shape[1] else total + values[:, pieces * SUMMED :].sum(1)


def _curve(d: Tensor, series: Tensor, spare: Tensor, coefficients: Sequence[Tensor]) -> Tensor:
    """e^d − 1 − d, in `series`; overwrites `spare`."""
    largest = float(torch.abs(d, out=spare).amax())
    terms = next((terms for reach, terms in _TERMS if largest < reach), 0)
    near = d if terms else d.clamp(-NEAR, NEAR)  # what is beyond is not taken of the series, and must not overflow
    *others, last = coefficients[: terms or _FEW]
    series.copy_(last)
    for coefficient in reversed(others):
        torch.addcmul(coefficient, series, near, out=series)
    series.mul_(near).mul_(near)
    if terms:
        return series
    # as numbers: `where` takes twelve times as long
    return series.lerp_(torch.expm1(d).sub_(d), torch.ge(spare, NEAR, out=spare))


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
