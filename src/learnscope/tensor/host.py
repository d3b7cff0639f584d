"""Tensors in the memory of the host as arrays that kernels in C read where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

LARGEST_KEPT = 31 << 20
"""Bytes. glibc adapts to blocks of up to 32 MiB, with what it puts before them."""
_KINDS = frozenset({Tensor, torch.nn.Parameter})


def plain_array(tensor: Tensor, *kinds: torch.dtype) -> NDArray[Any] | None:
    """The same memory for a kernel that goes over it from end to end; None of another kind, place or order."""
    if tensor.dtype not in kinds or not tensor.is_cpu or not tensor.is_contiguous() or type(tensor) not in _KINDS:
        return None
    return None if tensor.is_neg() else tensor.numpy()


def arrays_of(tensors: Sequence[Tensor]) -> list[NDArray[Any]] | None:
    """The same memory as arrays; None if a tensor is on another device, sparse, a subclass, or unknown to NumPy."""
    if not _KINDS.issuperset(map(type, tensors)):
        return None
    try:
        return [tensor.detach().numpy() if tensor.requires_grad else tensor.numpy() for tensor in tensors]
    except (RuntimeError, TypeError):  # sparse, on another device, negated lazily, of a kind that NumPy does not know
        return None


def keep_freed_memory() -> None:
    """From now on the memory of tensors of up to 31 MiB is used again, not given back and asked for page by page.

    Where a small model runs many times, new pages take a sixth of its time. glibc keeps blocks of the sizes that it has
    seen freed, and up to twice as much in all; this block is never written, so that it takes neither time nor memory.
    Other allocators are not changed by it.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)
