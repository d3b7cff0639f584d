"""Inner products of long rows, summed in float64 whatever the dtype of the rows."""

from __future__ import annotations

from collections.abc import Iterator

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
    with plain_arithmetic(a.device):
        total = torch.zeros(a.shape[0], dtype=_widest(a), device=a.device)
        for left, right in _pieces(a, b):
            total += torch.linalg.vecdot(left, right)
        return total


def all_products(a: Tensor, b: Tensor) -> Tensor:
    """a_i · b_j for all rows of two matrices, [k, m]."""
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"rows of {a.shape[1]} and {b.shape[1]} entries have no inner product")
    with plain_arithmetic(a.device):
        total = torch.zeros(a.shape[0], b.shape[0], dtype=_widest(a), device=a.device)
        for left, right in _pieces(a, b):
            total += left @ right.T
        return total


def _pieces(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    width = max(1, PIECE // max(1, a.shape[0], b.shape[0]))
    for start in range(0, a.shape[1], width):
        left, right = a[:, start : start + width], b[:, start : start + width]
        yield left.to(_widest(a)), right.to(_widest(a))


def _widest(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64  # Apple's devices have no float64
