"""Entries of a gradient that were cut to one size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MOST, FEWEST = 2**20, 16
"""Entries of the tensor that is looked at."""


def limit_share(gradients: Sequence[Tensor]) -> Tensor | None:
    """Share of the entries ≠ 0 of the largest gradient that are as large as its largest one, without their sign.

    NaN where every entry is 0 or one is not finite; None where no gradient can be looked at.
    """
    fits = [g for g in gradients if FEWEST <= g.numel() <= MOST and g.layout is torch.strided and type(g) is Tensor]
    if not fits:
        return None
    sizes = max(fits, key=Tensor.numel).detach().abs()
    largest = sizes.max()
    share = (sizes == largest).sum().double() / (sizes != 0).sum().clamp(min=1)
    return torch.where((largest > 0) & largest.isfinite(), share, torch.nan)
