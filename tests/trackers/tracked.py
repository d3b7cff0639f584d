"""Small real trainings under trackers, and the same numbers computed outright in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import entropy

from model.adapters.adapted import Adapted
from seeds.tiny import token_batches

FIRST = "model.layers.0.self_attn.q_proj"
INSIDE = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
MODULES = [f"model.layers.{layer}.{module}" for layer in range(2) for module in INSIDE]


def nothing(step: int) -> None:
    """Where a loop calls no tracker."""


def train(
    one: Adapted, steps: range, before_step: Callable[[int], Any] = nothing, after_step: Callable[[int], Any] = nothing
) -> list[float]:
    """A loop that calls where gradients stand, and where the weights have moved; batches depend on the step."""
    losses = []
    batches = token_batches(steps.stop)
    for step in steps:
        loss = one.model(**batches[step]).loss
        loss.backward()
        before_step(step)
        one.optimizer.step()
        if one.family == "adalora":
            one.model.base_model.update_and_allocate(step)
        one.optimizer.zero_grad()
        after_step(step)
        losses.append(float(loss.detach()))
    return losses


def spectral_truth(update: torch.Tensor, count: int) -> dict[str, Any]:
    """The documented metrics of ΔW from its singular values, of which rounding leaves `count`."""
    s: NDArray[np.float64] = np.linalg.svd(update.numpy(), compute_uv=False)[:count]
    energy = np.sum(s**2)
    return {
        "singular_values": s.tolist(),
        "spectral_gap": s[0] - s[-1],
        # a share of a millionth is what rounding leaves: the rank is lower, and the number infinite
        "condition_number": s[0] / s[-1] if s[-1] > 1e-6 * s[0] else None,
        "effective_rank": np.exp(entropy(s)),
        "nuclear_norm": s.sum(),
        "frobenius_norm": np.linalg.norm(update.numpy()),
        "top1_sv_ratio": s[0] ** 2 / energy,
        "top5_sv_ratio": np.sum(s[:5] ** 2) / energy,
        "top10_sv_ratio": np.sum(s[:10] ** 2) / energy,
    }


PARTS = {
    "lora_A": "lora_A.default.weight", "lora_B": "lora_B.default.weight", "lora_E": "lora_E.default",
    "magnitude": "lora_magnitude_vector.default.weight", "lambda_b": "vera_lambda_b.default",
    "lambda_d": "vera_lambda_d.default", "ia3_l": "ia3_l.default", "weight": "ln_tuning_layers.default.weight",
}  # fmt: skip


def gradient_truth(model: Any) -> dict[tuple[str, str], float]:
    """By module and component, from the parameters' names in PEFT."""
    found = {}
    for name, parameter in model.named_parameters():
        for component, ending in PARTS.items():
            plain = ending.removesuffix(".weight")  # AdaLoRA keeps its factors as parameters
            for end in {ending, plain}:
                if name.endswith(f".{end}") and parameter.grad is not None:
                    module = name.removeprefix("base_model.model.").removesuffix(f".{end}")
                    found[module, component] = float(np.linalg.norm(parameter.grad.double().numpy()))
    return found
