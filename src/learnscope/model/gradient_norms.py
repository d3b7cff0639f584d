"""GraNd: norms of the gradients of single examples, without making those gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def head_gradient_norms(logits: Tensor, targets: Tensor, features: Tensor, *, bias: bool = True) -> Tensor:
    """Norm of each example's cross-entropy gradient by the last linear layer, [N] in float64.

    That gradient is (p − y) hᵀ for the weight and p − y for the bias, so its norm is ‖p − y‖·√(‖h‖² + 1).
    `features` are h, what the layer was given, [N, D]; `logits` are [N, C].
    """
    if logits.ndim != 2 or features.ndim != 2 or len(features) != len(logits):
        raise ValueError(
            f"logits of shape {list(logits.shape)} and features of shape {list(features.shape)}: both must be "
            "[examples, …] with two dimensions"
        )
    error = logits.detach().double().softmax(1)
    rows = torch.arange(len(error), device=error.device)
    error[rows, targets] -= 1
    squares = features.detach().double().square().sum(1) + (1 if bias else 0)
    return error.square().sum(1).sqrt() * squares.sqrt()


def linear_gradient_norms(model: nn.Module, losses: Callable[[], Tensor]) -> Tensor:
    """Norm of each example's gradient by all trainable `nn.Linear` layers together, [N] in float64.

    `losses()` runs the model and returns one loss an example. A layer that is given a and whose output has the
    gradient b adds ‖a‖²‖b‖² for its weight and ‖b‖² for its bias. Other layers' parameters are left out. The
    parameters' own gradients are not touched. The caller guards the model, as for every forward of ours.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise ValueError(
                f"{name} is batch norm in training mode, which mixes examples: put the model into eval mode"
            )
    seen: list[tuple[nn.Linear, Tensor, Tensor]] = []
    names = {module: name for name, module in model.named_modules()}

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Linear), "hooked below"
        if inputs[0].ndim != 2:
            raise ValueError(f"{names[module]} is given {inputs[0].ndim} dimensions; only [examples, features] will do")
        if any(module is earlier for earlier, _, _ in seen):
            raise ValueError(f"{names[module]} runs twice in a forward: its gradient is no single product")
        seen.append((module, inputs[0].detach(), output))

    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no trainable nn.Linear")
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        with torch.enable_grad():
            each = losses()
            found = torch.autograd.grad(each.sum(), [output for _, _, output in seen], allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    squares = torch.zeros(len(each), dtype=torch.float64, device=each.device)
    for (layer, given, _), gradient in zip(seen, found, strict=True):
        if gradient is not None:
            with_bias = layer.bias is not None and layer.bias.requires_grad
            inputs = given.double().square().sum(1) + (1 if with_bias else 0)
            squares += inputs * gradient.double().square().sum(1)
    return squares.sqrt()
