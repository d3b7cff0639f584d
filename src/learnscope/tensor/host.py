"""Tensors in the memory of the host as arrays that kernels in C read where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_KINDS = frozenset({Tensor, torch.nn.Parameter})


def arrays_of(tensors: Sequence[Tensor]) -> list[NDArray[Any]] | None:
    """The same memory as arrays; None if a tensor is on another device, sparse, a subclass, or unknown to NumPy."""
    if not _KINDS.issuperset(map(type, tensors)):
        return None
    try:
        return [tensor.detach().numpy() if tensor.requires_grad else tensor.numpy() for tensor in tensors]
    except (RuntimeError, TypeError):  # sparse, on another device, negated lazily, of a kind that NumPy does not know
        return None
