"""Tensors in the memory of the host as arrays that kernels in C read where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope import native
from learnscope.native import Place

_KINDS = frozenset({Tensor, torch.nn.Parameter})


def lent(tensor: Tensor) -> NDArray[Any]:
    """The memory of a tensor as an array.

    `tensor.numpy()` would forbid for good to resize it, as loops do that fill one buffer with batch after batch, and
    FSDP with the weights that it has gathered.
    """
    return tensor.numpy(force=True) if tensor._is_zerotensor() else np.from_dlpack(tensor)


def plain_array(tensor: Tensor, *kinds: torch.dtype) -> NDArray[Any] | None:
    """The same memory for a kernel that goes over it from end to end; None of another kind, place or order, and where
    there are no kernels.
    """
    if native.kernels is None or tensor.dtype not in kinds or not tensor.is_cpu or type(tensor) not in _KINDS:
        return None
    try:
        if not tensor.is_contiguous() or tensor.is_neg():
            return None
        array = lent(tensor)
    except (RuntimeError, TypeError, BufferError):  # sparse, of another layout, without memory of its own
        return None
    return array if array.flags.aligned else None


_BYTES = {torch.float32: 4, torch.float64: 8}


def places_of(tensors: Sequence[Tensor], *, turned: bool = False) -> list[Place] | None:
    """Where kernels find the entries: address, number, and bytes of each. Arrays take several times as long to make.

    None if one is on another device, of another kind, or has gaps; with `turned` the order of a matrix does not matter.
    Nothing holds the memory: the tensors have to be there until the kernel is done.
    """
    places = []
    try:
        for tensor in tensors:
            size = _BYTES.get(tensor.dtype)
            if size is None or type(tensor) not in _KINDS or not tensor.is_cpu or tensor.is_neg():
                return None
            if not tensor.is_contiguous() and not (turned and tensor.ndim == 2 and tensor.t().is_contiguous()):
                return None
            address, entries = tensor.data_ptr(), tensor.numel()
            if entries and not address:  # its zeros are nowhere
                return None
            places.append((address, entries, size))
    except RuntimeError:  # sparse, or without memory of its own
        return None
    return places


def arrays_of(tensors: Sequence[Tensor]) -> list[NDArray[Any]] | None:
    """The same memory as arrays; None if a tensor is on another device, sparse, a subclass, or unknown to NumPy."""
    if not _KINDS.issuperset(map(type, tensors)):
        return None
    if not all(tensor.is_cpu and not tensor.is_neg() for tensor in tensors):
        return None
    try:
        return [lent(tensor.detach() if tensor.requires_grad else tensor) for tensor in tensors]
    except (RuntimeError, TypeError, BufferError):  # sparse, conjugated lazily, of a kind that NumPy does not know
        return None
