"""Hashes of the content of tensors: the same on any device and in any batch."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_MIX = (0x9E3779B97F4A7C15 - 2**64, 0x2545F4914F6CDD1D)
_BITS = 2**52 - 1  # what float64 holds exactly


def mixed(values: Tensor) -> Tensor:
    """A hash of each integer, in int64; sums of hashes tell multisets apart."""
    hashes = (values + 1) * _MIX[0]
    hashes = (hashes ^ (hashes >> 29)) * _MIX[1]
    return hashes ^ (hashes >> 32)


def as_float(hashes: Tensor) -> Tensor:
    """The lower bits as float64, exactly."""
    return (hashes & _BITS).double()


def row_checks(rows: Tensor) -> Tensor:
    """Checksums [N] in float64 of rows [N, D] of any dtype: an exact weighted sum of their bits, the same in any batch.

    With D up to 32, weights below 2¹⁶ and 32 bits per entry, float64 holds every partial sum exactly.
    """
    # as integers of at most 32 bits, at least one per entry
    if rows.is_complex():
        rows = torch.view_as_real(rows.contiguous()).flatten(1)
    if rows.is_floating_point():
        rows = rows.contiguous().view({1: torch.int8, 2: torch.int16}.get(rows.element_size(), torch.int32))
    elif rows.element_size() == 8:
        rows = rows.to(torch.int32)  # the lower half of larger numbers
    return rows.double() @ _weights(rows.shape[1], rows.device)


@cache
def _weights(width: int, device: torch.device) -> Tensor:
    columns = torch.arange(width, dtype=torch.float64)
    return ((columns * 40503 + 12345) % 65521 + 1).to(device)
