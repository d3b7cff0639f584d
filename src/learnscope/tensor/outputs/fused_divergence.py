"""The comparison of large logits in one fused pass, four times as fast as plain operations in float64.

Per entry in float32, summed in float64. With d = variant − reference and e = exp(reference − its largest):
D = Σ e d/Σ e, Φ = Σ e (e^d − 1 − d)/Σ e, and the divergence is ln(1 + D + Φ) − D. Rows in which that loses digits
(a common shift of all logits, a likely class that becomes unlikely), overflows or is not finite come back as NaN, and
are left to the slower float64 way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.kernels import COMPILED_DTYPES, run_compiled, wants_compiler

FUSED_FROM = 1 << 22
"""Logits from which on the fused pass is used: with fewer, compiling takes longer than it saves."""

LOST = 0.02
"""Share of Φ below which the divergence has lost too many digits to the shift."""

SMALLEST = 1e-30
"""Φ below which float32 may have rounded its terms to a few bits, or to 0."""

UNLIKE = 16
"""Ratio of the norms of two rows above which their cosine has lost too many digits to the larger one."""

PIECE = 512
"""Logits whose maximum is taken together."""

_SHAPE = (64, 1 << 14)
_COEFFICIENTS = [1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320, 1 / 362880, 1 / 3628800]
"""Of e^x − 1 − x = x²(1/2 + x/6 + …): computed directly, it would lose all digits of a small x."""


@dataclass(frozen=True)
class RowFacts:
    """What the comparison needs of each row of the reference, computed once for all variants."""

    top: Tensor
    """The largest logit, [rows, 1]."""
    total: Tensor
    """Σ exp(logit − top)"""
    squares: Tensor
    first: Tensor
    """The first index of the largest logit."""


def row_facts(logits: Tensor) -> RowFacts | None:
    """The facts of the rows of large logits; None where the fused pass does not apply."""
    fits = logits.ndim == 2 and logits.shape[1] > 1 and logits.dtype in COMPILED_DTYPES
    if not fits or logits.numel() < FUSED_FROM or not wants_compiler(logits.numel(), "compiled"):
        return None
    facts = run_compiled(_facts_kernel, [logits], rehearsal=[_SHAPE])
    return None if facts is None else RowFacts(facts[0], facts[1], facts[2], first_largest(logits))


def fused_comparison(reference: Tensor, variant: Tensor, facts: RowFacts) -> tuple[Tensor, Tensor] | None:
    """KL, cosine and mean squared error, [3, rows], NaN where the slower way is needed, and the variant's top-1."""
    inputs = [reference, variant, facts.top]
    sums = run_compiled(_comparison_kernel, inputs, rehearsal=[_SHAPE, _SHAPE, (_SHAPE[0], 1)])
    if sums is None:
        return None
    shifted, curved, error, growth = sums
    shift, curve = shifted / facts.total, curved / facts.total
    kl = torch.log1p(shift + curve) - shift
    # the sums are accurate to 1e-7, but 1 + D + Φ cancels where likely classes became unlikely
    left = (1 + shift + curve).clamp(max=1)
    lost = (kl * left < LOST * curve) | ((curve < SMALLEST) & (error > 0))
    before, after = facts.squares.sqrt(), (facts.squares + growth).sqrt()
    cosine = 1 - (error - (growth / (before + after)).square()) / (2 * before * after)
    unlike = torch.maximum(before, after) > UNLIKE * torch.minimum(before, after)
    kl, cosine = kl.masked_fill(lost, torch.nan), cosine.clamp(-1, 1).masked_fill(unlike, torch.nan)
    return torch.stack([kl, cosine, error / reference.shape[1]]), first_largest(variant)


def _facts_kernel(logits: Tensor) -> tuple[Tensor, ...]:
    wide = logits.float()
    top = wide.amax(1, keepdim=True)
    return top, (wide - top).exp().double().sum(1), (wide * wide).double().sum(1)


def _comparison_kernel(reference: Tensor, variant: Tensor, top: Tensor) -> tuple[Tensor, ...]:
    a, b = reference.float(), variant.float()
    d, e = b - a, (a - top).exp()
    series = torch.full_like(d, _COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        series = series * d + coefficient
    curve = torch.where(d.abs() < 1, series * d * d, d.exp() - 1 - d)
    return (
        (e * d).double().sum(1),
        (e * curve).double().sum(1),
        (d * d).double().sum(1),
        (d * (a + b)).double().sum(1),
    )


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
