"""Kernels for a batch of examples in the memory of the host: its scores, and copies that cost next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope import native
from learnscope.tensor.host import lent

Scores = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]


def host_scores(logits: Tensor, targets: Tensor) -> Scores | None:
    """p(gold), margin, loss and EL2N in four rows; whether right; and what was predicted instead, -1 for none.

    None where there are no kernels, and where a target is none of the classes; logits are [N, C] of two classes or
    more, targets int64.
    """
    kernels = native.kernels
    if kernels is None or type(logits) is not Tensor:
        return None
    half = logits.dtype not in (torch.float32, torch.float64)
    z = np.ascontiguousarray(lent((logits.float() if half else logits).detach().resolve_neg()))
    wanted, count = np.ascontiguousarray(lent(targets)), len(z)
    if not (z.flags.aligned and wanted.flags.aligned):
        return None
    scores, right, predicted = np.empty((4, count)), np.empty(count, np.bool_), np.empty(count, np.int64)
    inside = kernels.example_scores(z, wanted, scores, right, predicted)
    return (scores, right, predicted) if inside else None


class Places:
    """Memory on the host that batches of one kind are copied to, in place of tensors: a call of torch takes longer."""

    def __init__(self, places: Sequence[Sequence[Tensor]]) -> None:
        self._places, kernels = places, native.kernels
        self._copy: Any = None if kernels is None else kernels.copy_memory
        if not all(tensor.is_cpu and tensor.is_contiguous() for place in places for tensor in place):
            self._copy = None
        made = places if self._copy else ()
        self._to = [[number for t in place for number in (t.data_ptr(), t.nbytes)] for place in made]
        """Addresses and bytes."""

    def __reduce__(self) -> Any:
        """A copy has memory of its own, at other addresses."""
        return Places, (self._places,)

    def put(self, number: int, ids: Tensor, logits: Tensor, targets: Tensor, inputs: Tensor | None) -> bool:
        """Copy tensors of just that kind to a place; False where torch has to."""
        if self._copy is None or not (ids.is_contiguous() and logits.is_contiguous() and targets.is_contiguous()):
            return False
        to = self._to[number]
        try:  # as called at every step, without a loop
            known = (to[0], ids.data_ptr(), to[1], to[2], logits.data_ptr(), to[3], to[4], targets.data_ptr(), to[5])
            if logits.is_neg():
                return False
            if inputs is not None and (inputs.is_neg() or inputs.is_conj() or not inputs.is_contiguous()):
                return False
            self._copy(*known) if inputs is None else self._copy(*known, to[6], inputs.data_ptr(), to[7])
        except (RuntimeError, ValueError):  # it has no memory of the usual kind, or none
            return False
        return True


def own_numbers(values: Tensor) -> memoryview | Tensor:
    """A copy of whole numbers in one dimension, which has `tolist()`."""
    kernels = native.kernels
    usual = type(values) is Tensor and values.is_cpu and values.dtype is torch.int64 and values.ndim == 1
    if kernels is not None and usual and not values.is_neg():
        try:
            if values.is_contiguous():
                return memoryview(kernels.bytes_at(values.data_ptr(), 8 * len(values))).cast("q")
        except (RuntimeError, ValueError):  # it has no memory of the usual kind, or none
            pass
    return values.detach().clone()
