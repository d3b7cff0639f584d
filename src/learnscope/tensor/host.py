"""Tensors in the memory of the host as arrays that kernels in C read where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

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
