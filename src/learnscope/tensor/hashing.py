"""Numbers that stand for the content of tensors: equal content, equal number, on any device and in any batch."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_MIX = (0x9E3779B97F4A7C15 - 2**64, 0x2545F4914F6CDD1D)
_BITS = 2**52 - 1  # what float64 carries exactly


def mixed(values: Tensor) -> Tensor:
    """Each whole number scrambled on its own, in int64; sums of them tell multisets apart."""
    out = (values + 1) * _MIX[0]
    out = (out ^ (out >> 29)) * _MIX[1]
    return out ^ (out >> 32)


def as_float(hashes: Tensor) -> Tensor:
    """The lower bits as float64, exactly."""
    return (hashes & _BITS).double()


def row_hashes(rows: Tensor) -> Tensor:
    """[N] int64 from rows [N, D] of any type, by all their bits: slower than `row_checks`, for rows of any length."""
    bits = _bits(rows).long()
    columns = torch.arange(bits.shape[1], device=bits.device)
    return mixed(bits ^ mixed(columns)).sum(1)


def row_checks(rows: Tensor) -> Tensor:
    """[N] float64 from rows [N, D] of any type: a weighted sum of their bits, exact, so the same in any batch.

    With D up to 32, weights below 2¹⁶ and 32 bits an entry, no partial sum leaves the whole numbers of float64.
    """
    bits = _bits(rows)
    return bits.double() @ _weights(bits.shape[1], bits.device)


@cache
def _weights(width: int, device: torch.device) -> Tensor:
    odd = torch.arange(width, dtype=torch.float64)
    return ((odd * 40503 + 12345) % 65521 + 1).to(device)


def _bits(x: Tensor) -> Tensor:
    """Whole numbers of 32 bits at most, at least one an entry."""
    if x.is_complex():
        x = torch.view_as_real(x.contiguous()).flatten(1)
    if x.is_floating_point():
        width = x.element_size()
        return x.contiguous().view({1: torch.int8, 2: torch.int16}.get(width, torch.int32))
    return x.to(torch.int32) if x.element_size() == 8 else x  # the lower half of larger numbers
