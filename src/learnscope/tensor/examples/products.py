"""Inner products of long rows, summed in float64 whatever the dtype of the rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from learnscope.tensor.context import plain_arithmetic

PIECE = 1 << 20
"""Entries of each side that are converted at a time."""


def row_products(a: Tensor, b: Tensor) -> Tensor:
    """a_i · b_i for the rows of two matrices of one shape, [k].

    The square of 1e-30 underflows in float32, and with it the direction of a small gradient; in float64 it does not.

    >>> row_products(torch.full((2, 3), 1e-30), torch.full((2, 3), 1e-30))
    tensor([3.0000e-60, 3.0000e-60], dtype=torch.float64)
    """
    if a.shape != b.shape:
        raise ValueError(f"rows of shapes {list(a.shape)} and {list(b.shape)} do not pair up")
    return _summed(a, b, torch.linalg.vecdot)


def all_products(a: Tensor, b: Tensor) -> Tensor:
    """a_i · b_j for all rows of two matrices, [k, m]."""
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"rows of {a.shape[1]} and {b.shape[1]} entries have no inner product")
    return _summed(a, b, lambda left, right: left @ right.T)


def widest_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on Apple's devices, which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def _summed(a: Tensor, b: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The product of two matrices, summed over pieces of their columns."""
    wide = widest_dtype(a.device)
    width = max(1, PIECE // max(1, a.shape[0], b.shape[0]))
    with plain_arithmetic(a.device):
        total = product(a[:, :0].to(wide), b[:, :0].to(wide))
        for left, right in zip(a.split(width, 1), b.split(width, 1), strict=True):
            total += product(left.to(wide), right.to(wide))
        return total
