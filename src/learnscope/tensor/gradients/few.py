"""Statistics of few, small gradients on a CPU, in one pass of NumPy: torch's calls take longer than such sums."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FEW = 1 << 14
"""Entries of all tensors together up to which they are copied and squared in float64."""
_PLAIN = frozenset({torch.float32, torch.float64})


def few_statistics(tensors: Sequence[Tensor], *, counting: bool) -> NDArray[np.float64] | None:
    """Σt², and with `counting` the zeros, NaN and infinite entries of each, `[1 or 4, tensors]`.

    None for tensors of another kind, which `learnscope.tensor.gradients.gradient` reads by rows.
    """
    lengths = tuple([tensor.numel() for tensor in tensors])
    if not lengths or sum(lengths) > FEW or not all(lengths):
        return None
    for tensor in tensors:
        is_usual = type(tensor) is Tensor or type(tensor) is torch.nn.Parameter
        if not (is_usual and tensor.is_cpu and tensor.dtype in _PLAIN and tensor.layout is torch.strided):
            return None
        if tensor.is_neg():
            return None
    values = np.concatenate([tensor.detach().numpy() for tensor in tensors], None, dtype=np.float64)
    starts = _starts(lengths)
    out = np.zeros((4 if counting else 1, len(lengths)))
    with np.errstate(over="ignore", invalid="ignore"):
        out[0] = np.add.reduceat(values * values, starts)
    if counting:
        if np.count_nonzero(values) < len(values):
            out[1] = np.add.reduceat(values == 0, starts, dtype=np.float64)
        if not np.isfinite(out[0]).all():
            out[2] = np.add.reduceat(np.isnan(values), starts, dtype=np.float64)
            out[3] = np.add.reduceat(np.isinf(values), starts, dtype=np.float64)
    return out


@functools.lru_cache(maxsize=64)
def _starts(lengths: tuple[int, ...]) -> NDArray[np.int64]:
    return np.cumsum([0, *lengths[:-1]], dtype=np.int64)
