"""How far the outputs of a variant of a model are from those of the model itself, at every position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic
from learnscope.tensor.outputs.fused_divergence import RowFacts, fused_comparison

CHUNK = 1 << 19
"""Logits compared at a time on a CPU: their float64 copies stay in the cache."""
ACCELERATOR_CHUNK = 1 << 24
NEEDED_P999 = 2995
"""Positions that the 99.9th percentile needs: of as many, the largest is above it in 95 % of cases."""
KEPT_ENTRIES = 1 << 22
"""Logits up to which a softmax in float64 is kept: 32 MB at most."""


@dataclass(frozen=True)
class Comparison:
    """One entry per position, in float64 on the logits' device unless stated otherwise.

    What is undefined is NaN: `kl` and `agree` of regression outputs, `cosine` where a position has one number
    (it would be the product of two signs) or one of the two vectors is zero.
    """

    kl: Tensor
    cosine: Tensor
    mse: Tensor
    agree: Tensor
    """Whether both have the same top-1, as booleans (float64 NaN for regression). A NaN row predicts nothing."""
    broke: Tensor | None = None
    """Correct in the reference and wrong in the variant, as booleans; None without target classes."""
    mended: Tensor | None = None
    """Wrong in the reference and correct in the variant."""
    log_total: Tensor | None = None
    """Logarithm of the sum of the variant's exponentials, of large logits, to 1e-8; what it differs by from that of the
    reference beside itself is as accurate as the divergence. NaN where that is not so."""


class ReferenceRows(NamedTuple):
    """What the comparison in float64 needs of the reference's rows, computed once for all variants."""

    p: Tensor
    """Their softmax, as large as the logits: not for large logits."""
    first: Tensor
    norm: Tensor


def reference_rows(logits: Tensor, rows: Tensor | None = None) -> ReferenceRows | None:
    """`ReferenceRows` of the logits; None if they are too large to keep, or there is one logit per position."""
    if logits.ndim < 2 or logits.shape[-1] == 1 or logits.numel() > KEPT_ENTRIES:
        return None
    with plain_arithmetic(logits.device):
        wide = _as_rows(plain(logits), probabilities=True)
        # a copy, also of float64 logits: the softmax is taken in place
        wide = (wide if rows is None else wide[rows]).to(torch.float64, copy=True)
        first, norm = _top1(wide, torch.empty_like(wide)), torch.linalg.vector_norm(wide, dim=1)
        return ReferenceRows(_softmax(wide), first, norm)


def compare_logits(
    reference: Tensor,
    variant: Tensor,
    targets: Tensor | None = None,
    *,
    probabilities: bool = True,
    rows: Tensor | None = None,
    facts: RowFacts | ReferenceRows | None = None,
) -> Comparison:
    """KL(reference ‖ variant) = Σ p (ln p − ln q) in nats, cosine and mean squared error of logits, equal top-1.

    Logits are [N, ..., C] and a position is all but the last dimension; a single logit ([N], [N, 1]) is that of a
    Bernoulli variable, p = σ(z), whose top-1 is z > 0. `targets` are classes, one per position. With
    `probabilities=False` outputs are numbers, [N, ...], and a position is the first dimension.

    With Δ = variant − reference and δ = Δ − Σ p Δ, the divergence is ln(1 + Σ p (e^δ − 1 − δ)): a sum of terms that
    are never negative, so that tiny values are accurate and equal logits give exactly 0. −∞ (a masked class) has
    probability 0; entries that are equally infinite in both count neither for the cosine nor for the error.
    A NaN or +∞ among several logits is no distribution: KL is NaN.

    `rows` are the positions that count; targets are then of these only. To compare several variants, compute the
    `facts` of the reference once: `row_facts` for large logits, `reference_rows` of the same rows for others.
    """
    if reference.shape != variant.shape:
        raise ValueError(
            f"logits of shape {list(reference.shape)} cannot be compared with {list(variant.shape)}: "
            "both must be outputs for the same batch"
        )
    with plain_arithmetic(reference.device):
        a, b = (_as_rows(plain(logits), probabilities) for logits in (reference, variant))
        rows = torch.arange(len(a), device=a.device) if rows is None else rows
        size = CHUNK if a.device.type == "cpu" else ACCELERATOR_CHUNK
        step = min(max(1, size // max(1, a.shape[1])), max(1, len(rows)))
        log_total = None
        if isinstance(facts, RowFacts) and probabilities:
            fused = fused_comparison(a, b, facts)
            numbers, log_total = fused.numbers[:, rows], fused.log_total[rows]
            classes = torch.stack([facts.first[rows].long(), fused.first[rows]])
            redo = (~numbers.isfinite().all(0)).nonzero().squeeze(1)
            if len(redo):
                numbers[:, redo], _ = _in_chunks(a, b, rows[redo], step, probabilities)
        else:
            cached = facts if isinstance(facts, ReferenceRows) and probabilities else None
            numbers, classes = _in_chunks(a, b, rows, step, probabilities, cached)
        # rows with an infinity, or with a divergence that overflows, are few and compared more slowly
        nonfinite = (~numbers.isfinite().all(0)).nonzero().squeeze(1)
        for part in nonfinite.split(step) if len(nonfinite) else ():
            numbers[:, part] = _compare_nonfinite(a[rows[part]], b[rows[part]], probabilities)
        kl, cosine, mse = numbers
        if a.shape[1] == 1:
            cosine = torch.full_like(cosine, torch.nan)
        if not probabilities:
            nothing = torch.full_like(kl, torch.nan)
            return Comparison(nothing, cosine, mse, nothing)
        return Comparison(kl, cosine, mse, *_top1_changes(classes, targets), log_total=log_total)


def summarise(parts: Sequence[Comparison]) -> dict[str, Tensor]:
    """Scalars over the positions of all parts: `kl`, `cosine`, `mse` are means, `top1_agree`, `broke`, `mended` shares.

    `kl_median` and `kl_p99` interpolate linearly between positions. A NaN at one position makes the result NaN.
    """
    if not parts:
        raise ValueError("no outputs were compared: give at least one batch")
    kl, cosine, mse = (torch.cat([getattr(part, name) for part in parts]) for name in ("kl", "cosine", "mse"))
    ordered = kl.sort().values
    summary = {
        "kl": kl.mean(),
        "kl_median": _quantile(ordered, 0.5),
        "kl_p99": _quantile(ordered, 0.99),
        "cosine": cosine.mean(),
        "mse": mse.mean(),
        "top1_agree": torch.cat([part.agree for part in parts]).double().mean(),
    }
    for name in ("broke", "mended"):
        flips = [flip for part in parts if (flip := getattr(part, name)) is not None]
        if len(flips) == len(parts):
            summary[name] = torch.cat(flips).double().mean()
    return summary


def _as_rows(logits: Tensor, probabilities: bool) -> Tensor:
    if logits.ndim < 2:
        return logits.reshape(-1, 1)
    if probabilities:
        return logits.reshape(math.prod(logits.shape[:-1]), logits.shape[-1])
    return logits.reshape(logits.shape[0], math.prod(logits.shape[1:]))


def _in_chunks(
    a: Tensor, b: Tensor, rows: Tensor, step: int, probabilities: bool, cached: ReferenceRows | None = None
) -> tuple[Tensor, Tensor]:
    """The numbers of these rows in float64, and both top-1."""
    # the same memory for every chunk: fresh pages would take as long as the arithmetic
    work = torch.empty(3, step, a.shape[1], dtype=torch.float64, device=a.device)
    parts = []
    for start, part in zip(range(0, max(len(rows), 1), step), rows.split(step), strict=True):
        chunk = None if cached is None else ReferenceRows(*(values[start : start + step] for values in cached))
        parts.append(_compare(a[part], b[part], work, probabilities, chunk))
    return torch.cat([numbers for numbers, _ in parts], 1), torch.cat([classes for _, classes in parts], 1)


def _compare(
    a: Tensor, b: Tensor, work: Tensor, probabilities: bool, cached: ReferenceRows | None = None
) -> tuple[Tensor, Tensor]:
    """KL, cosine and error of rows, [3, n], and both top-1, [2, n]; not finite where `_compare_nonfinite` is needed."""
    wide_a, wide_b, spare = work[:, : len(a)]
    wide_a.copy_(a)
    wide_b.copy_(b)
    kl, classes = torch.zeros(len(a), dtype=torch.float64, device=a.device), torch.empty(2, 0, device=a.device)
    cosine, error = _distances(wide_a, wide_b, spare, None if cached is None else cached.norm)
    if probabilities and a.shape[1] == 1:
        classes = torch.stack([torch.where(x.isnan(), -1, (x > 0).long()).squeeze(1) for x in (a, b)])
        kl = _divergence(*(_both_sides(x) for x in (wide_a, wide_b)))
    elif probabilities:
        first = _top1(wide_a, spare) if cached is None else cached.first
        classes = torch.stack([first, _top1(wide_b, spare)])
        kl = _divergence(wide_a, wide_b, spare, None if cached is None else cached.p)
    return torch.stack([kl, cosine, error / a.shape[1]]), classes


def _compare_nonfinite(a: Tensor, b: Tensor, probabilities: bool) -> Tensor:
    """The same numbers for rows with an infinity or NaN, or in which e^δ overflows."""
    a, b = a.double(), b.double()
    alike = (a == b) & a.isinf()
    cosine, error = _distances(a.masked_fill(alike, 0), b.masked_fill(alike, 0), torch.empty_like(a))
    kl = torch.zeros_like(error)
    if probabilities:
        if a.shape[1] == 1:
            a, b = _both_sides(a), _both_sides(b)
        log_p, log_q = a.log_softmax(1), b.log_softmax(1)
        p = log_p.exp()
        far = torch.where(p == 0, 0, p * (log_p - log_q)).sum(1).clamp(min=0)
        masked = (a == b) & (a == -torch.inf) & a.isfinite().any(1, keepdim=True)
        low = -1e300  # its probability is 0, and so is its Δ
        near = _divergence(a.masked_fill(masked, low), b.masked_fill(masked, low))
        kl = torch.where(near.isfinite(), near, far)
    return torch.stack([kl, cosine, error / (~alike).sum(1)])


def _distances(a: Tensor, b: Tensor, spare: Tensor, norm: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cosine and squared error of each row. Overwrites `spare`."""
    error = torch.sub(a, b, out=spare).square_().sum(1)
    product = torch.mul(a, b, out=spare).sum(1)
    norm = torch.linalg.vector_norm(a, dim=1) if norm is None else norm
    product = product / norm / torch.linalg.vector_norm(b, dim=1)
    # exactly 1 for equal vectors, in spite of rounding; two zeros have no direction, and their product is NaN
    return torch.where((error == 0) & (norm > 0), 1.0, product.clamp_(-1, 1)), error


def _divergence(a: Tensor, b: Tensor, spare: Tensor | None = None, p: Tensor | None = None) -> Tensor:
    """KL of each row's softmax, where it is finite. Overwrites its arguments."""
    spare = torch.empty_like(a) if spare is None else spare
    delta = b.sub_(a)
    p = _softmax(a) if p is None else p
    delta -= torch.mul(p, delta, out=spare).sum(1, keepdim=True)
    return torch.expm1(delta, out=spare).sub_(delta).mul_(p).sum(1).log1p_()


def _softmax(a: Tensor) -> Tensor:
    """Softmax of each row, in place."""
    p = a.sub_(a.amax(1, keepdim=True)).exp_()
    p /= p.sum(1, keepdim=True)
    return p


def _top1(logits: Tensor, spare: Tensor) -> Tensor:
    """The first index of each row's largest logit, -1 if one is NaN: as `argmax`, which takes three times as long."""
    entries = logits.shape[1]
    top = logits.amax(1, keepdim=True)
    from_the_end = torch.arange(entries, 0, -1, dtype=torch.float64, device=logits.device)
    first = entries - torch.eq(logits, top, out=spare).mul_(from_the_end).amax(1)
    return torch.where(top.squeeze(1).isnan(), -1, first.long())


def _both_sides(z: Tensor) -> Tensor:
    """Two logits whose softmax is (1 − σ(z), σ(z)), also for an infinite z."""
    return torch.cat([-z.clamp(min=0), z.clamp(max=0)], 1)


def _top1_changes(classes: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Whether the top-1 is the same, whether it was correct and is wrong, and the other way round."""
    first, second = classes
    agree = (first == second) & (first >= 0)
    if targets is None or targets.is_floating_point():
        return agree, None, None
    if targets.numel() != len(first):
        raise ValueError(f"{targets.numel()} targets for {len(first)} positions: integer targets are one per position")
    correct = classes == targets.reshape(1, -1)
    return agree, correct[0] & ~correct[1], ~correct[0] & correct[1]


def far_quantile(parts: Sequence[Comparison]) -> Tensor:
    """The 99.9th percentile of the KL over the positions of all parts; NaN with fewer than `NEEDED_P999` of them."""
    kl = torch.cat([part.kl for part in parts]).double()
    return _quantile(kl.sort().values if len(kl) >= NEEDED_P999 else kl[:0], 0.999)


def _quantile(ordered: Tensor, share: float) -> Tensor:
    """By linear interpolation; torch.quantile takes at most 2²⁴ numbers, and gives NaN between two infinities."""
    if not len(ordered):
        return ordered.new_full((), torch.nan)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    between = torch.where(low == high, low, torch.lerp(low, high, place - math.floor(place)))
    return torch.where(ordered[-1].isnan(), torch.nan, between)
