"""The update that an optimizer computed, before it was rounded to the weights' dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype
from learnscope.tensor.updates.fold import bits_differ

KNOWN = ("SGD", "Adam", "AdamW")
Rounding = Literal["apart", "together"]


def planned_update(
    optimizer: str, options: Mapping[str, Any], state: Mapping[str, Tensor], weight: Tensor, gradient: Tensor
) -> Tensor:
    """The step of one of torch's optimizers in float32 (float64 for float64 weights), from its state after it.

    Adam: −η·m̂/(√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ), with the running maximum of v for AMSGrad.
    AdamW adds −η·λ·w. SGD: −η·d with d the momentum buffer (Nesterov: g + μ·d), g including λ·w.
    `weight` is the weight before the step; all tensors are aligned samples of the same entries.
    """
    wide = arithmetic_dtype(weight)
    w, g = weight.to(wide), gradient.to(wide)
    rate = float(options["lr"])
    decay = float(options.get("weight_decay", 0.0))
    if optimizer in ("Adam", "AdamW"):
        first, second = bias_corrections(options, state["step"])
        spread = (state["max_exp_avg_sq"] if options.get("amsgrad") else state["exp_avg_sq"]).to(wide) / second
        step = adam_step(rate, float(options["eps"]), state["exp_avg"].to(wide) / first, spread)
        return step - rate * decay * w if decoupled(optimizer, options) else step
    if optimizer != "SGD":
        raise ValueError(f"the update of {optimizer} is not known; known are {', '.join(KNOWN)}")
    g = (-g if options.get("maximize") else g) + decay * w
    momentum = float(options.get("momentum", 0.0))
    if momentum == 0.0:
        return -rate * g
    buffer = state["momentum_buffer"].to(w.dtype)
    return -rate * (g + momentum * buffer if options.get("nesterov") else buffer)


def bias_corrections(options: Mapping[str, Any], step: float | Tensor) -> tuple[float | Tensor, float | Tensor]:
    """1 − β₁ᵗ and 1 − β₂ᵗ, on the accelerator if the step count is there.

    >>> [round(c, 12) for c in bias_corrections({"betas": (0.9, 0.999)}, 2)]
    [0.19, 0.001999]
    """
    steps = step.double() if isinstance(step, Tensor) and step.device.type != "cpu" else float(step)
    first, second = (1 - float(beta) ** steps for beta in options["betas"])
    return first, second


def adam_step(rate: float | Tensor, eps: float, mean: Tensor, spread: Tensor) -> Tensor:
    """−η·m̂/(√v̂ + ε) (Kingma and Ba, arXiv 1412.6980), without weight decay."""
    step: Tensor = -rate * mean / (spread.sqrt() + eps)
    return step


def decoupled(optimizer: str, options: Mapping[str, Any]) -> bool:
    """Whether weight decay shrinks the weight itself (AdamW) instead of being added to the gradient."""
    return optimizer == "AdamW" or bool(options.get("decoupled_weight_decay", False))


def decay_rounding(options: Mapping[str, Any]) -> Rounding:
    """Whether decay is rounded apart from the rest of the update, or together with it.

    torch's loops round after every operation: the weight after w·(1 − ηλ), the gradient after g + λ·w. Its fused
    kernels work in float32 and round the finished weight once.
    """
    return "together" if options.get("fused") else "apart"


def decay_vanishes(optimizer: str, options: Mapping[str, Any], weight: Tensor, gradient: Tensor) -> Tensor:
    """Entries that weight decay, rounded apart as torch's loops do it, leaves bit for bit unchanged.

    Decoupled: w·(1 − ηλ) rounded to the dtype of w is w. Coupled: g + λ·w rounded to the dtype of g is g.
    The arithmetic is torch's own, in the tensors' own dtype: float32 inside, rounded once.
    """
    decay = options["weight_decay"]
    if decoupled(optimizer, options):
        return ~bits_differ(weight * (1 - options["lr"] * decay), weight)
    used = -gradient if options.get("maximize") else gradient
    return ~bits_differ(used.add(weight, alpha=float(decay)), used)
