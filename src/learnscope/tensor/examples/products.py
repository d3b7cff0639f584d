"""Long rows, such as gradients: their inner products, summed in float64, and random projections of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from learnscope.tensor.context import plain_arithmetic

PIECE = 1 << 20
"""Entries of each side that are converted at a time."""
BLOCK = 1 << 18
"""Signs drawn at a time. Fixed, since another size would give another projection for the same seed."""


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


class RademacherProjection:
    """X ↦ X R / √dims for R of `size` × `dims` independent signs: inner products of rows are preserved on average.

    The inner product of two projected rows has an error of about ‖x‖‖y‖/√dims. R is drawn block by block from a
    generator of its own, on the CPU, so that a seed gives the same on every device. It is kept, one byte per sign, if
    that takes at most `keep_bytes`, and otherwise drawn again for every call.

    >>> x = torch.eye(3, 1000)
    >>> RademacherProjection(1000, 64, seed=1)(x).shape
    torch.Size([3, 64])
    """

    def __init__(self, size: int, dims: int, *, seed: int = 0, keep_bytes: int = 0) -> None:
        if size < 1 or dims < 1:
            raise ValueError(f"cannot project {size} entries to {dims}: both must be at least 1")
        self.size, self.dims, self.seed = size, dims, seed
        self._height = max(1, BLOCK // dims)
        self._kept = list(self._drawn()) if size * dims <= keep_bytes else None

    def __call__(self, rows: Tensor) -> Tensor:
        """[k, size] to [k, dims], in the dtype of the rows."""
        with plain_arithmetic(rows.device):
            total = rows.new_zeros(rows.shape[0], self.dims)
            blocks = self._drawn() if self._kept is None else self._kept
            for part, signs in zip(rows.split(self._height, 1), blocks, strict=True):
                total += part @ signs.to(rows.device, rows.dtype)
            return total.div_(self.dims**0.5)

    def _drawn(self) -> Iterator[Tensor]:
        generator = torch.Generator(device="cpu").manual_seed(self.seed)
        for start in range(0, self.size, self._height):
            shape = min(self._height, self.size - start), self.dims
            bits = torch.randint(0, 2, shape, generator=generator, dtype=torch.int8, device="cpu")
            yield bits.mul_(2).sub_(1)
