"""The update that an optimizer meant to make, before it was rounded to the weights' dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

KNOWN = ("SGD", "Adam", "AdamW")


def planned_update(
    optimizer: str, options: Mapping[str, Any], state: Mapping[str, Tensor], weight: Tensor, gradient: Tensor
) -> Tensor:
    """The step of one of torch's optimizers in float32 (float64 for float64 weights), from its state after it.

    Adam: −η·m̂/(√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ), with the running maximum of v for AMSGrad.
    AdamW adds −η·λ·w. SGD: −η·d with d the momentum buffer (Nesterov: g + μ·d), g including λ·w.
    `weight` is the weight before the step; all tensors are aligned samples of the same entries.
    """
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    w, g = weight.to(wide), gradient.to(wide)
    rate = float(options["lr"])
    decay = float(options.get("weight_decay", 0.0))
    if optimizer in ("Adam", "AdamW"):
        decoupled = optimizer == "AdamW" or bool(options.get("decoupled_weight_decay", False))
        return _adam(options, state, w, rate, decay if decoupled else 0.0)
    if optimizer == "SGD":
        return _sgd(options, state, w, g, rate, decay)
    raise ValueError(f"the update of {optimizer} is not known; known are {', '.join(KNOWN)}")


def _adam(options: Mapping[str, Any], state: Mapping[str, Tensor], w: Tensor, rate: float, decay: float) -> Tensor:
    steps = float(state["step"])
    beta1, beta2 = (float(beta) for beta in options["betas"])
    second = state["max_exp_avg_sq"] if options.get("amsgrad") else state["exp_avg_sq"]
    mean = state["exp_avg"].to(w.dtype) / (1 - beta1**steps)
    spread = (second.to(w.dtype) / (1 - beta2**steps)).sqrt()
    step: Tensor = -rate * mean / (spread + float(options["eps"]))
    return step - rate * decay * w


def _sgd(
    options: Mapping[str, Any], state: Mapping[str, Tensor], w: Tensor, g: Tensor, rate: float, decay: float
) -> Tensor:
    g = (-g if options.get("maximize") else g) + decay * w
    momentum = float(options.get("momentum", 0.0))
    if momentum == 0.0:
        return -rate * g
    buffer = state["momentum_buffer"].to(w.dtype)
    return -rate * (g + momentum * buffer if options.get("nesterov") else buffer)
