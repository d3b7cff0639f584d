"""Which moments the optimizers keep of which parameter, and why they keep none of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from learnscope.core.subject import Subject
from learnscope.tensor.updates.moments import Remembered
from learnscope.tensor.updates.update import bias_corrections

Rule = Literal["adam", "momentum"]
Holder = tuple[Optimizer, dict[str, Any]]


@dataclass(slots=True)
class Memory:
    """What is remembered of each parameter, by position, and why nothing is of the others."""

    by_rule: dict[Rule, dict[int, Remembered]] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    """Parameters without moments, with the reason."""
    unknown: set[int] = field(default_factory=set)
    """Those of them that an optimizer holds which is not known here."""
    no_gradient: dict[int, str] = field(default_factory=dict)
    """Parameters with moments but without a gradient to compare them with, with the reason."""


def remembered(subject: Subject, optimizers: Sequence[Optimizer]) -> Memory:
    """Look at the state of every optimizer; nothing is copied."""
    held, memory = holders(optimizers), Memory()
    for position, p in enumerate(subject.parameters):
        holder = held.get(id(p))
        reason = _no_moments(holder, p)
        if holder is None or reason is not None:
            memory.missing[position] = reason or "in no optimizer"
            if holder is not None and _rule(holder[0]) is None:
                memory.unknown.add(position)
            continue
        rule, (optimizer, group) = _rule(holder[0]), holder
        assert rule is not None, "an optimizer without a rule was given a reason"
        gradient = _gradient(memory, position, rule, group, p)
        memory.by_rule.setdefault(rule, {})[position] = _one(rule, group, optimizer.state[p], p, gradient)
    return memory


def holders(optimizers: Sequence[Optimizer]) -> dict[int, Holder]:
    """The optimizer and the group that hold a parameter, by the parameter's id."""
    return {id(p): (o, group) for o in optimizers for group in o.param_groups for p in group["params"]}


def _rule(optimizer: Optimizer) -> Rule | None:
    """Adam's subclasses (AdamW is one) keep its moments; NAdam, RAdam and Adamax are none, and correct otherwise."""
    return "adam" if isinstance(optimizer, Adam) else "momentum" if isinstance(optimizer, SGD) else None


def _no_moments(holder: Holder | None, p: Tensor) -> str | None:
    if not p.is_floating_point():
        return f"{str(p.dtype).removeprefix('torch.')} parameters have no moments"
    if holder is None:
        return "in no optimizer" if p.requires_grad else "frozen"
    optimizer, group = holder
    name, state, rule = type(optimizer).__name__, optimizer.state.get(p), _rule(optimizer)
    if rule is None:
        return f"the moments of {name} are not known"
    if rule == "momentum" and not group.get("momentum"):
        return f"{name} without momentum keeps no moments"
    if not state:
        return "never stepped" if p.requires_grad else "frozen"
    needed = {"adam": ("exp_avg", "exp_avg_sq", "step"), "momentum": ("momentum_buffer",)}[rule]
    kept = [state.get(key) for key in needed]
    if any(value is None for value in kept):
        return f"{name} keeps no {' and '.join(needed)} of it"
    if any(value.shape != p.shape for value in kept[:2]):
        return f"the state of {name} has another shape than its parameter"
    return None


def _one(rule: Rule, group: Mapping[str, Any], state: Mapping[str, Any], p: Tensor, g: Tensor | None) -> Remembered:
    ascending = bool(group.get("maximize"))
    if rule == "momentum":
        return Remembered(weight=p, first=state["momentum_buffer"], gradient=g, ascending=ascending)
    return Remembered(
        weight=p,
        first=state["exp_avg"],
        second=state["exp_avg_sq"],
        largest=state["max_exp_avg_sq"] if group.get("amsgrad") else None,
        gradient=g,
        ascending=ascending,
        corrections=bias_corrections(group, state["step"]),
        rate=group["lr"],
        eps=float(group["eps"]),
    )


def _gradient(memory: Memory, position: int, rule: Rule, group: Mapping[str, Any], p: Tensor) -> Tensor | None:
    """The gradient that the step used, if it still stands."""
    if p.grad is None:
        memory.no_gradient[position] = "its gradient was cleared before the measurement, or it had none"
        return None
    foreach = group.get("foreach") or (group.get("foreach") is None and p.device.type != "cpu")
    spared = group.get("fused") or group.get("weight_decay") or group.get("maximize")
    if rule == "momentum" and group.get("nesterov") and foreach and not spared:
        # torch adds μ·buffer to the gradients themselves there, having made no copy of them
        memory.no_gradient[position] = "SGD with Nesterov momentum and foreach has written into its gradient"
        return None
    return p.grad
