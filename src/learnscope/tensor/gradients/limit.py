"""Entries of a gradient that were cut to one size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

MOST, FEWEST = 2**20, 16
"""Entries of the tensor that is looked at."""
_OF_NUMPY = frozenset({torch.float32, torch.float64})


def limit_share(gradients: Sequence[Tensor]) -> Tensor | None:
    """Share of the entries ≠ 0 of the largest gradient that are as large as its largest one, without their sign.

    NaN where every entry is 0 or one is not finite; None where no gradient can be looked at.
    """
    fits = [g for g in gradients if FEWEST <= g.numel() <= MOST and g.layout is torch.strided and type(g) is Tensor]
    if not fits:
        return None
    chosen = max(fits, key=Tensor.numel).detach()
    if chosen.is_cpu and chosen.dtype in _OF_NUMPY and not chosen.is_neg():
        return torch.tensor(_share(chosen), dtype=torch.float64, device="cpu")
    sizes = chosen.abs()
    largest = sizes.max()
    share = (sizes == largest).sum().double() / (sizes != 0).sum().clamp(min=1)
    return torch.where((largest > 0) & largest.isfinite(), share, torch.nan)


def _share(gradient: Tensor) -> float:
    """The same in NumPy, whose calls take less time, and without an array of sizes, which would be new memory."""
    values = gradient.numpy()
    largest = max(values.max(), -values.min())
    if not 0 < largest < np.inf:
        return float("nan")
    at_largest = np.count_nonzero(values == largest) + np.count_nonzero(values == -largest)
    return float(at_largest / (values.size - np.count_nonzero(values == 0)))
