"""Entries of a gradient that were cut to one size."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from learnscope.tensor.gradients.gradient import GradientTable

MOST, FEWEST = 2**20, 16
"""Entries of the tensor that is looked at."""


def limit_share(gradients: Sequence[Tensor], table: GradientTable) -> Tensor | None:
    """Share of the entries ≠ 0 of the largest gradient that are as large as its largest one, without their sign.

    NaN where every entry is 0 or one is not finite; None where no gradient can be looked at. `table` are their
    statistics.
    """
    index = _largest(tuple([g.numel() if type(g) is Tensor and g.layout is torch.strided else 0 for g in gradients]))
    if index is None:
        return None
    if table.at_largest.is_cpu and (counted := float(table.at_largest.numpy()[index])) == counted:
        share = counted / (gradients[index].numel() - float(table.zeros.numpy()[index]))
        return torch.from_numpy(np.array(share))
    sizes = gradients[index].detach().abs()
    largest = sizes.max()
    share_seen = (sizes == largest).sum().double() / (sizes != 0).sum().clamp(min=1)
    return torch.where((largest > 0) & largest.isfinite(), share_seen, torch.nan)


@functools.lru_cache(maxsize=64)
def _largest(lengths: tuple[int, ...]) -> int | None:
    fits = [index for index, length in enumerate(lengths) if FEWEST <= length <= MOST]
    return max(fits, key=lengths.__getitem__) if fits else None
