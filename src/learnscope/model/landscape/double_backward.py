"""Differentiating a model's loss twice: the context that this needs, and errors instead of silently wrong results.

Parameters are replaced meanwhile by others that share their memory and have no hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.tensor.context import plain_arithmetic

HALF = (torch.float16, torch.bfloat16)


@contextmanager
def twice_differentiable(model: nn.Module, *, widen: bool) -> Iterator[None]:
    """The guarded model ready for double backward: with gradients, in eval mode, no autocast, math attention.

    Fused attention and cuDNN's recurrent layers have no double backward. Parameters are stand-ins, since a hook on a
    parameter, the user's or ours, would run at every product and might change it.
    """
    with ExitStack() as stack:
        stack.enter_context(guard(model))
        stack.enter_context(plain_arithmetic(model_device(model)))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(extra_backward(model))
        stack.enter_context(stand_ins(model, widen=widen))
        yield


@contextmanager
def extra_backward(model: nn.Module) -> Iterator[None]:
    """Around a backward in eval mode that is not the training loop's."""
    with ExitStack() as stack:
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            # cuDNN's recurrent layers have no backward in eval mode, and no double backward
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if isinstance(model, nn.parallel.DistributedDataParallel):
            # a forward with gradients would arm the reducer, and the next training step would wait for it
            stack.enter_context(model.no_sync())
        yield


@contextmanager
def stand_ins(model: nn.Module, *, widen: bool) -> Iterator[None]:
    """Replace each trainable parameter by one that shares its memory; tied ones stay tied.

    With `widen`, half-precision parameters (trainable or not) and buffers are float32 copies instead.
    """
    parameters: dict[int, nn.Parameter] = {}
    places: list[tuple[nn.Module, str, nn.Parameter]] = []
    buffers: list[tuple[nn.Module, str, Tensor]] = []
    try:
        for module in model.modules():
            for name, p in list(module._parameters.items()):
                if p is not None and (p.requires_grad or (widen and p.dtype in HALF)):
                    places.append((module, name, p))
                    # by setattr: recurrent layers also keep a list of their weights
                    if id(p) not in parameters:
                        # through .data, which has its own version counter: a pending backward has saved the parameter's
                        data = p.data.float() if widen and p.dtype in HALF else p.data
                        parameters[id(p)] = nn.Parameter(data, requires_grad=p.requires_grad)
                    setattr(module, name, parameters[id(p)])
            for name, buffer in list(module._buffers.items()):
                if widen and buffer is not None and buffer.dtype in HALF:
                    buffers.append((module, name, buffer))
                    module._buffers[name] = buffer.float()
        yield
    finally:
        for module, name, p in places:
            setattr(module, name, p)
        for module, name, buffer in buffers:
            module._buffers[name] = buffer


def widened_bytes(model: nn.Module) -> int:
    """Memory of float32 copies of all half-precision parameters and buffers."""
    return sum(4 * t.numel() for t in [*model.parameters(), *model.buffers()] if t.dtype in HALF)


@contextmanager
def explained(model: nn.Module) -> Iterator[None]:
    """Turn an error of autograd into one that says that the model does not support double backward."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RuntimeError(
            f"the loss of {type(model).__name__} cannot be differentiated twice, as Hessian-vector products need: "
            f"{error}. Use implementations that have a double backward (for Hugging Face models "
            "attn_implementation='eager', no custom kernels, no reentrant checkpointing), or leave this probe out"
        ) from error


def watch_custom_functions(loss: Tensor) -> None:
    """Make the backward of `loss` fail if the gradient of a custom function has no history of its own.

    autograd.grad would treat such a gradient as a constant and return a Hessian without it, with no error: a function
    marked `once_differentiable` raises only if its error node is on the path to a parameter, which it is not.
    """
    queue, visited = [loss.grad_fn], set()
    while queue:
        node = queue.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            node.register_hook(partial(_refuse_constant, type(node).__name__))
        queue += [following for following, _ in node.next_functions]


def _refuse_constant(name: str, gradients: Sequence[Tensor | None], _incoming: Sequence[Tensor | None]) -> None:
    # the backward of a product comes here again, without history
    for g in gradients if torch.is_grad_enabled() else ():
        if g is not None and (g.grad_fn is None or g.grad_fn.name().endswith("::Error")):
            raise RuntimeError(f"the gradient of {name}, a custom autograd function, cannot be differentiated")
