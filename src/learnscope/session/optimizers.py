"""The optimizers that can be watched, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer


def as_optimizers(given: Any, model: nn.Module) -> list[Optimizer]:
    """The torch optimizers behind what the user passed, or a refusal that says what to do."""
    if given is None:
        return []
    items = list(given.values()) if isinstance(given, dict) else given
    items = list(items) if isinstance(items, Iterable) else [items]
    optimizers = [unwrap_optimizer(item) for item in items]
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            raise ValueError(  # noqa: TRY004  (the type is right, this kind of it is not)
                "LBFGS evaluates the model several times within one step, so there is no single gradient or update "
                "to record. Use a first-order optimizer, or call w.step() after each of its steps: "
                "ls.watch(model) without the optimizer."
            )
    if _steps_in_backward(model, optimizers):
        raise ValueError(
            "this optimizer steps inside backward, parameter by parameter, so there is no moment at which all "
            "gradients exist. Open ls.watch(model) without the optimizer and call w.step() after each backward."
        )
    return optimizers


def unwrap_optimizer(given: Any) -> Optimizer:
    """Accelerate's and Lightning's wrappers never fire hooks: go to the optimizer inside."""
    while isinstance(inner := getattr(given, "optimizer", None), Optimizer):
        given = inner
    if not isinstance(given, Optimizer):
        raise TypeError(
            f"{type(given).__name__} is not a torch optimizer. Pass the torch.optim optimizer, or open "
            "ls.watch(model) without one and call w.step() after each step."
        )
    return given


def _steps_in_backward(model: nn.Module, optimizers: Sequence[Optimizer]) -> bool:
    if any(getattr(p, "_in_backward_optimizers", None) for p in model.parameters()):
        return True
    # the recipe of torch's tutorial: one optimizer a parameter, stepped by a post-accumulate hook
    single = [o for o in optimizers if sum(len(group["params"]) for group in o.param_groups) == 1]
    hooked = any(getattr(p, "_post_accumulate_grad_hooks", None) for p in model.parameters())
    return hooked and len(single) > 1 and len(single) == len(optimizers)
