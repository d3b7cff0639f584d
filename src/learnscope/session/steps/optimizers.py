"""Optimizers that can be followed, and hooks on their steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinMethodType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

R = TypeVar("R")


def as_optimizers(optimizer: Any, model: nn.Module) -> list[Optimizer]:
    """The torch optimizers in what the user passed; an error says what to do instead."""
    if optimizer is None:
        return []
    items = list(optimizer.values()) if isinstance(optimizer, dict) else optimizer
    optimizers = [unwrap_optimizer(item) for item in (items if isinstance(items, Iterable) else [items])]
    if any(isinstance(each, LBFGS) for each in optimizers):
        raise ValueError(
            "LBFGS evaluates the model several times within one step, so there is no single gradient or update to "
            "record. Use a first-order optimizer, or call w.step() after each of its steps: ls.watch(model) without "
            "the optimizer."
        )
    if (shared := _held_twice(model, optimizers)) is not None:
        raise ValueError(
            f"parameter {shared} is in two of the optimizers, so that a training step would have two gradients and two "
            "updates of it. Watch each optimizer in a session of its own: ls.watch(model, first) and "
            "ls.watch(model, second)."
        )
    if _steps_in_backward(model, optimizers):
        raise ValueError(
            "this optimizer steps inside backward, parameter by parameter, so there is no moment at which all "
            "gradients exist. Open ls.watch(model) without the optimizer and call w.step() after each backward."
        )
    return optimizers


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimizer; wrappers of Accelerate and Lightning contain one, and never fire hooks themselves."""
    found = unwrapped(optimizer)
    if found is None:
        raise TypeError(
            f"{type(optimizer).__name__} is not a torch optimizer. Pass the torch.optim optimizer, or open "
            "ls.watch(model) without one and call w.step() after each step."
        )
    return found


def unwrapped(optimizer: Any) -> Optimizer | None:
    """The torch optimizer in what a trainer passes on; None if there is none."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer if isinstance(optimizer, Optimizer) else None


def _held_twice(model: nn.Module, optimizers: Sequence[Optimizer]) -> str | None:
    """The first parameter that two optimizers hold."""
    distinct = list({id(optimizer): optimizer for optimizer in optimizers}.values())
    held = Counter(id(p) for optimizer in distinct for group in optimizer.param_groups for p in group["params"])
    return next((name for name, p in model.named_parameters() if held[id(p)] > 1), None)


def _steps_in_backward(model: nn.Module, optimizers: Sequence[Optimizer]) -> bool:
    if any(getattr(p, "_in_backward_optimizers", None) for p in model.parameters()):
        return True
    # the recipe of torch's tutorial: one optimizer a parameter, stepped by a post-accumulate hook
    single = [o for o in optimizers if sum(len(group["params"]) for group in o.param_groups) == 1]
    hooked = any(getattr(p, "_post_accumulate_grad_hooks", None) for p in model.parameters())
    return hooked and len(single) > 1 and len(single) == len(optimizers)


def untraced(hook: Callable[..., R]) -> Callable[..., R]:
    """A hook that no compiled step traces: one in C as it is, and any other with one call more.

    `torch.compiler.disable` imports the compiler: when the hook is first called, as optimizers do too.
    """
    if isinstance(hook, BuiltinMethodType):
        return hook
    apart: list[Callable[..., R]] = []

    def call(*args: Any) -> R:
        if not apart:
            apart.append(torch.compiler.disable(hook))
        # of what compiles, Dynamo alone follows Python into a hook
        return apart[0](*args) if torch.compiler.is_dynamo_compiling() else hook(*args)

    return call
