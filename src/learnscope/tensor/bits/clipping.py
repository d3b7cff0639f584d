"""Round-to-nearest with the range that loses least: outliers are cut where a finer step is worth more.

For every group that shares a scale, the range is multiplied by p = 1, 0.98, …, 0.3, and the p with the least
Σ (w - w')² is taken; p = 1 is round-to-nearest, so the error is never larger than its.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnscope.tensor.bits.quantize import (
    HALF_BITS,
    Quantised,
    Scheme,
    as_codes,
    checked_bits,
    checked_matrix,
    compute_dtype,
    ends_of,
    grouped,
    quantize,
    restored,
    rounded,
    scales_of,
)

SHARES = tuple(share / 50 for share in range(50, 14, -1))
"""Of the range of a group, from all of it on."""
BLOCK = 1 << 18
"""Weights that are tried at a time: all that is computed of them stays in the cache."""


@torch.no_grad()
def quantize_clipped(weight: Tensor, bits: int, scheme: Scheme | None = None) -> Quantised:
    """`weight` [out, in] as `quantize` gives it, with the share of each group's range that has the least error."""
    scheme = scheme or Scheme()
    if checked_bits(bits) >= HALF_BITS or not weight.numel():
        return quantize(weight, bits, scheme)
    matrix = checked_matrix(weight)
    groups = grouped(matrix.to(compute_dtype(matrix.dtype)), scheme)
    scale, zero = clipped_scales(groups, bits, scheme, matrix.dtype)
    return as_codes(rounded(groups, scale, zero, bits), scale, zero, matrix, bits, scheme)


def clipped_scales(
    groups: Tensor, bits: int, scheme: Scheme, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor | None]:
    """As `scales_of`, for the share of every group's range that has the least Σ (w - w')², w' in `dtype`."""
    step = max(1, BLOCK // max(1, groups[:1].numel()))
    parts = [_best_scales(part, bits, scheme, dtype) for part in groups.split(step)]
    zeros = [zero for _, zero in parts if zero is not None]
    return torch.cat([scale for scale, _ in parts]), torch.cat(zeros) if zeros else None


def _best_scales(groups: Tensor, bits: int, scheme: Scheme, dtype: torch.dtype | None) -> tuple[Tensor, Tensor | None]:
    ends = low, high = ends_of(groups)
    largest = torch.maximum(-low, high).clamp(min=torch.finfo(groups.dtype).tiny)
    scale, zero = scales_of(groups, bits, scheme, ends=ends)
    least = _error(groups, largest, scale, zero, bits, dtype)
    for share in SHARES[1:]:
        other_scale, other_zero = scales_of(groups, bits, scheme, share, ends)
        error = _error(groups, largest, other_scale, other_zero, bits, dtype)
        better = error < least
        least = torch.where(better, error, least)
        scale = torch.where(better, other_scale, scale)
        if zero is not None and other_zero is not None:
            zero = torch.where(better, other_zero, zero)
    return scale, zero


def _error(
    groups: Tensor, largest: Tensor, scale: Tensor, zero: Tensor | None, bits: int, dtype: torch.dtype | None
) -> Tensor:
    """Σ (w - w')² of every group. Differences are divided by the group's largest entry, whose square may overflow."""
    made = restored(rounded(groups, scale, zero, bits), scale, zero)
    if dtype is not None and dtype != made.dtype:
        made = made.to(dtype).to(made.dtype)
    return made.sub_(groups).div_(largest).square_().sum(-1, keepdim=True, dtype=torch.float64)
