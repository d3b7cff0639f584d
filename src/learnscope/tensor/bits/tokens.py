"""Activations as integers of a few bits, each token by its own range."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from learnscope.tensor.bits.quantize import compute_dtype, rounded_around_0


def fake_quantize_tokens(values: Tensor, bits: int) -> Tensor:
    """Activations [..., features] with every token (last dimension) symmetric in `bits` bits, in their own dtype.

    As a kernel with dynamic quantisation does: each token by its own range. A token with NaN or Inf becomes NaN, so
    that a broken model is noticed. The gradient is the straight-through one, as if nothing had been rounded.

    >>> fake_quantize_tokens(torch.tensor([[1.0, 0.3], [100.0, 0.3]]), 2)
    tensor([[  1.,   0.],
            [100.,   0.]])
    """
    if not values.is_floating_point() or not values.numel():
        return values
    rounded: Tensor = cast(Any, _StraightThrough).apply(values, bits)  # its stubs have no types
    return rounded


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, values: Tensor, bits: int) -> Tensor:
        most = 2 ** (bits - 1) - 1
        wide = values.to(compute_dtype(values.dtype))
        scale = wide.abs().amax(-1, keepdim=True) / most
        scale = torch.where(scale == 0, torch.finfo(scale.dtype).tiny, scale)
        return rounded_around_0(wide, scale, most).mul_(scale).to(values.dtype)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
