"""The curvature above which an optimizer becomes unstable: its threshold and its preconditioner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from learnscope.core.moment import Moment
from learnscope.probes.updates.remembered import holders as holders_by_id
from learnscope.tensor.landscape.curvature import Vector

ADAM = ("Adam", "AdamW")


def descent_threshold(group: Mapping[str, Any]) -> float:
    """2/η: gradient descent on a quadratic of larger curvature diverges."""
    return _over(2.0, float(group["lr"]))


def momentum_threshold(group: Mapping[str, Any]) -> float:
    """Of torch's SGD with momentum μ and dampening τ: (2 + 2μ)/((1 − τ)η), Nesterov (2 + 2μ)/((1 + 2μ)η).

    arXiv 2103.00065, appendix on momentum; dampening multiplies the gradients that enter the buffer.
    """
    rate, momentum = float(group["lr"]), float(group.get("momentum", 0.0))
    factor = 1 + 2 * momentum if group.get("nesterov") else 1 - float(group.get("dampening", 0.0))
    return _over(2 + 2 * momentum, factor * rate)


def adam_threshold(group: Mapping[str, Any]) -> float:
    """(2 + 2β₁)/((1 − β₁)η), for the preconditioned curvature (arXiv 2207.14484); 38/η at β₁ = 0.9."""
    beta = float(group["betas"][0])
    return _over(2 + 2 * beta, (1 - beta) * float(group["lr"]))


@dataclass(frozen=True, slots=True)
class Holder:
    """The optimizer and the group that hold a parameter, and its state there."""

    optimizer: Optimizer
    group: Mapping[str, Any]
    state: Mapping[str, Any]


def holders_of(moment: Moment, named: Mapping[str, nn.Parameter]) -> dict[str, Holder]:
    """By name, for those of the parameters that an optimizer holds."""
    by_id = holders_by_id(moment)
    return {
        name: Holder(*by_id[id(p)], by_id[id(p)][0].state.get(p, {})) for name, p in named.items() if id(p) in by_id
    }


def smallest_threshold(holders: Mapping[str, Holder], threshold: Callable[[Mapping[str, Any]], float]) -> float:
    """The threshold of the group that becomes unstable first: with equal momentum, that of the largest η."""
    return min(threshold(holder.group) for holder in holders.values())


def uses_momentum(holders: Mapping[str, Holder]) -> bool:
    """Whether all is torch's SGD, some of it with momentum."""
    return all(type(h.optimizer) is torch.optim.SGD for h in holders.values()) and any(
        h.group.get("momentum") for h in holders.values()
    )


def no_preconditioner(holders: Mapping[str, Holder], names: Sequence[str]) -> str | None:
    """Why there is none for all of these parameters; None if there is."""
    missing = [name for name in names if name not in holders]
    if missing:
        return f"no optimizer holds {missing[0]}"
    other = sorted({type(holders[name].optimizer).__name__ for name in names} - set(ADAM))
    if other:
        return f"the preconditioner of {', '.join(other)} is not known; known are {', '.join(ADAM)}"
    unstepped = [name for name in names if "exp_avg_sq" not in holders[name].state]
    return f"the optimizer has made no step for {unstepped[0]} yet" if unstepped else None


def preconditioner(holders: Mapping[str, Holder], names: Sequence[str], dtype: type[np.floating[Any]]) -> Vector:
    """The diagonal of P^(−1/2) over these parameters, one after the other.

    P = √v̂ + ε with v̂ = v/(1 − β₂ᵗ), the running maximum of v for AMSGrad.
    """
    parts = []
    for group, state in ((holders[name].group, holders[name].state) for name in names):
        second: Tensor = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
        correction = 1 - float(group["betas"][1]) ** float(state["step"])
        corrected = second.detach().reshape(-1).cpu().double().numpy() / correction
        parts.append(1 / np.sqrt(np.sqrt(corrected) + float(group["eps"])))
    return np.concatenate(parts).astype(dtype, copy=False)


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("inf")
