"""The surroundings in which every function of this package computes, whatever the caller has switched on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor


@contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, no inference mode: the same numbers and the same compiled code."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for kind in {"cpu", device.type} - {"meta"}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def plain(tensor: Tensor) -> Tensor:
    """The same memory as an ordinary tensor that records no history and is no inference tensor."""
    tensor = tensor.detach()
    if not tensor.is_inference():
        return tensor
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
