"""Entries of a gradient that were cut to one size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.rows import WIDTH, workspace

MOST, FEWEST = 2**20, 16
"""Entries of the tensor that is looked at."""
_OF_NUMPY = frozenset({torch.float32, torch.float64})


def limit_share(gradients: Sequence[Tensor], zeros: Tensor | None = None) -> Tensor | None:
    """Share of the entries ≠ 0 of the largest gradient that are as large as its largest one, without their sign.

    NaN where every entry is 0 or one is not finite; None where no gradient can be looked at. `zeros` are the entries
    = 0 of each gradient, if they have been counted.
    """
    entries = {i: n for i, g in enumerate(gradients) if FEWEST <= (n := g.numel()) <= MOST and type(g) is Tensor}
    fits = [i for i in entries if gradients[i].layout is torch.strided]
    if not fits:
        return None
    index = max(fits, key=entries.__getitem__)
    chosen = gradients[index].detach()
    if chosen.is_cpu and chosen.dtype in _OF_NUMPY and not chosen.is_neg():
        counted = None if zeros is None or not zeros.is_cpu else float(zeros[index])
        return torch.tensor(_share(chosen, counted), dtype=torch.float64, device="cpu")
    sizes = chosen.abs()
    largest = sizes.max()
    share = (sizes == largest).sum().double() / (sizes != 0).sum().clamp(min=1)
    return torch.where((largest > 0) & largest.isfinite(), share, torch.nan)


def _share(gradient: Tensor, zeros: float | None) -> float:
    """The same in NumPy, whose calls take less time, and without an array of sizes, which would be new memory."""
    values = gradient.numpy()
    high, low = values.max(), values.min()
    largest = max(high, -low)
    if not 0 < largest < np.inf:
        return float("nan")
    # in most gradients only one end is the largest
    at_largest = sum(_count(values, end) for end in (high, low) if abs(end) == largest)
    return float(at_largest / (values.size - (_count(values, 0) if zeros is None else zeros)))


def _count(values: NDArray[np.floating], number: float) -> int:
    """Entries that are this number; the flags are in memory that has been touched before."""
    flags = workspace("flags", math.ceil(values.size / WIDTH), torch.bool, torch.device("cpu")).view(-1)[: values.size]
    return int(np.count_nonzero(np.equal(values.ravel("K"), number, out=flags.numpy())))
