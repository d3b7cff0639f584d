"""The arithmetic that every function of this package uses, whatever mode the caller is in."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor


def plain_arithmetic(device: torch.device) -> Any:
    """A context without gradients, autocast and inference mode: the same numbers and the same compiled code.

    Only modes that are on are switched off: entering all takes a tenth of the time for a small model.
    """
    kinds = ("cpu",) if device.type in ("cpu", "meta") else ("cpu", device.type)
    cast = [kind for kind in kinds if torch.is_autocast_enabled(kind)]
    if not cast and not torch.is_inference_mode_enabled():
        return torch.no_grad()  # as nearly always
    stack = ExitStack()
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    for kind in cast:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def plain(tensor: Tensor) -> Tensor:
    """The same memory as an ordinary tensor that records no history and is no inference tensor."""
    tensor = tensor.detach()
    return alias(tensor) if tensor.is_inference() else tensor


def alias(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of its own, which is not a view."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def arithmetic_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype for arithmetic: float64 if any of the tensors is float64, else float32."""
    return torch.float64 if any(tensor.dtype is torch.float64 for tensor in tensors) else torch.float32


def common_dtype(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """A dtype that holds the values of both; torch's own promotion does not support 8-bit floats."""
    if a == b:
        return a
    return torch.promote_types(*(torch.float32 if kind.itemsize == 1 else kind for kind in (a, b)))
