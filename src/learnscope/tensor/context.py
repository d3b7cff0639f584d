"""The surroundings in which every function of this package computes, whatever the caller has switched on."""

from contextlib import ExitStack

import torch
from torch import Tensor


def plain_arithmetic(device: torch.device) -> ExitStack:
    """No gradients, no autocast, no inference mode: the same numbers and the same compiled code.

    Only what is switched on is switched off, as entering them all takes a tenth of a small model's call.
    """
    stack = ExitStack()
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    for kind in ("cpu",) if device.type in ("cpu", "meta") else ("cpu", device.type):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def plain(tensor: Tensor) -> Tensor:
    """The same memory as an ordinary tensor that records no history and is no inference tensor."""
    tensor = tensor.detach()
    if not tensor.is_inference():
        return tensor
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def arithmetic_dtype(*tensors: Tensor) -> torch.dtype:
    """What differences are taken in: float64 where one of the tensors is, float32 otherwise."""
    return torch.float64 if any(tensor.dtype is torch.float64 for tensor in tensors) else torch.float32


def common_dtype(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """A dtype that holds the values of both; torch's own promotion knows no 8-bit floats."""
    if a == b:
        return a
    return torch.promote_types(*(torch.float32 if kind.itemsize == 1 else kind for kind in (a, b)))
