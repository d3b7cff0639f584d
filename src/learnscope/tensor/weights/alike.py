"""Weights of which all units begin as copies of one."""

from __future__ import annotations

import torch
from torch import Tensor


def units_alike(weight: Tensor) -> bool:
    """Whether the rows of a matrix, or the filters of a convolution, are all the same and not 0.

    Such units get the same gradient and stay one unit. False of a single one, and of what cannot be looked at.
    """
    plain = type(weight.detach()) is Tensor and weight.layout is torch.strided and weight.device.type != "meta"
    if not plain or weight.ndim < 2 or len(weight) < 2 or not weight[0].numel() or not weight.is_floating_point():
        return False
    rows = weight.detach()
    if not torch.equal(rows[0], rows[1]):  # as of nearly all
        return False
    return bool((rows == rows[:1]).all()) and bool(rows[0].any())
