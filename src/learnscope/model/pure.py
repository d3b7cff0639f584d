"""Forward passes in eval mode that need no guard, since all that runs is known to change nothing and to draw nothing.

What the guard saves and restores takes longer than a small model's forward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn

_SIZED = ("Conv", "ConvTranspose", "BatchNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "Dropout")
_NAMES = (
    "Sequential", "Identity", "Flatten", "Unflatten", "Linear", "Bilinear", "Embedding", "LayerNorm", "RMSNorm",
    "GroupNorm", "Dropout", "AlphaDropout", "FeatureAlphaDropout", "ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "CELU",
    "SELU", "GELU", "SiLU", "Mish", "Sigmoid", "LogSigmoid", "Hardsigmoid", "Hardswish", "Hardtanh", "Tanh",
    "Tanhshrink", "Softplus", "Softsign", "Softmin", "Softmax", "LogSoftmax", "Threshold",
    *(f"{name}{dimensions}d" for name in _SIZED for dimensions in (1, 2, 3)),
)  # fmt: skip
PURE = frozenset(getattr(nn, name) for name in _NAMES if hasattr(nn, name))
"""Modules of torch whose forward in eval mode writes nothing and draws nothing; no class derived from them."""


def pure_modules(model: nn.Module) -> list[nn.Module] | None:
    """All modules of a model that only runs torch's own code in its forward; None of any other model."""
    if type(model) not in PURE or torch_module._has_any_global_hook():  # most others end here
        return None
    modules = list(model.modules())
    return modules if all(map(_is_pure, modules)) else None


def _is_pure(module: nn.Module) -> bool:
    own = vars(module)
    return (
        type(module) in PURE
        and not (own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"])
        and not own["_backward_pre_hooks"]
        and "forward" not in own
        and own.get("_compiled_call_impl") is None
        and own.get("max_norm") is None  # an embedding with one writes its weights when it is read
        and all(type(p) is nn.Parameter for p in own["_parameters"].values() if p is not None)
        and all(type(b) is Tensor for b in own["_buffers"].values() if b is not None)
    )


def pure_logits(model: nn.Module, inputs: Any) -> Tensor | None:
    """What a model of torch's own modules gives for a batch of tensors in eval mode; None for any other."""
    if type(inputs) is not Tensor or not inputs.is_floating_point() or inputs.ndim < 2:
        return None
    modules = pure_modules(model)
    if modules is None or inputs.device != next((p.device for p in model.parameters()), None):
        return None
    training = [vars(module) for module in modules if module.training]
    torch.clear_autocast_cache()  # which would hold the weights of the step before, inside the loop's own autocast
    try:
        for own in training:
            own["training"] = False
        with torch.no_grad():
            logits: Tensor = model(inputs)
        return logits
    finally:
        for own in training:
            own["training"] = True
        torch.clear_autocast_cache()
