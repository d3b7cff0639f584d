"""The moments that optimizers keep of each parameter, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from learnscope.core.moment import Moment
from learnscope.core.stepped import NOT_STEPPED, Options, stepped_gradient, stepped_groups
from learnscope.tensor.segments import Segments
from learnscope.tensor.updates.moments import Remembered, bias_corrections

Rule = Literal["adam", "momentum"]
Holder = tuple[Optimizer, Options]


@dataclass(slots=True)
class Memory:
    """What is remembered of each parameter, by position, and why nothing is of the others."""

    by_rule: dict[Rule, dict[int, Remembered]] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    """Parameters without moments, with the reason."""
    unknown: set[int] = field(default_factory=set)
    """Those of them in an optimizer whose moments are not known here."""
    no_gradient: dict[int, str] = field(default_factory=dict)
    """Parameters with moments but without a gradient to compare them with, with the reason."""


def remembered(moment: Moment) -> Memory:
    """Read the state of every optimizer; nothing is copied."""
    holder_of, memory = holders(moment), Memory()
    for position, p in enumerate(moment.subject.parameters):
        holder = holder_of.get(id(p))
        owner = None if holder is None else holder[0]
        # AdamW is a subclass of Adam; NAdam, RAdam and Adamax are none, and correct their moments otherwise
        rule: Rule | None = "adam" if isinstance(owner, Adam) else "momentum" if isinstance(owner, SGD) else None
        reason = NOT_STEPPED if did_not_step(moment, owner) else _no_moments(holder, rule, p)
        if reason is not None:
            memory.missing[position] = reason
            if holder is not None and rule is None and reason is not NOT_STEPPED:
                memory.unknown.add(position)
            continue
        assert holder is not None, "there would be a reason"
        assert rule is not None, "there would be a reason"
        optimizer, group = holder
        gradient = stepped_gradient(moment, position)
        no_gradient = _no_gradient(rule, group, p, gradient)
        if no_gradient is not None:
            gradient, memory.no_gradient[position] = None, no_gradient
        state = {"ascending": bool(group.get("maximize")), **_state(rule, group, optimizer.state[p])}
        memory.by_rule.setdefault(rule, {})[position] = Remembered(weight=p, gradient=gradient, **state)
    return memory


def reasons_of_scopes(segments: Segments, positions: Sequence[int], missing: Mapping[int, str]) -> dict[int, str]:
    """By place, why scopes have no number: the reasons (`missing`, by position) of their parameters, if all have."""
    groups = ([positions[i] for i in group] for group in segments.members)
    return {
        place: "; ".join(dict.fromkeys(missing[position] for position in group))
        for place, group in enumerate(groups)
        if all(position in missing for position in group)
    }


def holders(moment: Moment) -> dict[int, Holder]:
    """The optimizer and the group that hold a parameter, by the parameter's id; with the options of the step taken."""
    groups = [group for optimizer in moment.optimizers for group in optimizer.param_groups]
    stepped = zip(groups, stepped_groups(moment), strict=True)
    return {id(p): (o, options or group) for group, (o, options) in stepped for p in group["params"]}


def did_not_step(moment: Moment, optimizer: Optimizer | None) -> bool:
    """Whether, of several optimizers, this one did not step in the training step that is measured."""
    stepped = moment.handed.stepped
    return stepped is not None and optimizer is not None and not stepped.took_part(optimizer)


def _no_moments(holder: Holder | None, rule: Rule | None, p: Tensor) -> str | None:
    """Why a parameter has no moments; None if it has."""
    if not p.is_floating_point():
        return f"{str(p.dtype).removeprefix('torch.')} parameters have no moments"
    if holder is None:
        return "in no optimizer" if p.requires_grad else "frozen"
    optimizer, group = holder
    name, state = type(optimizer).__name__, optimizer.state.get(p)
    if rule is None:
        return f"the moments of {name} are not known"
    if rule == "momentum" and not group.get("momentum"):
        return f"{name} without momentum keeps no moments"
    if not state:
        return "never stepped" if p.requires_grad else "frozen"
    needed = {"adam": ("exp_avg", "exp_avg_sq", "step"), "momentum": ("momentum_buffer",)}[rule]
    values = [state.get(key) for key in needed]
    if any(value is None for value in values):
        return f"{name} keeps no {' and '.join(needed)} of it"
    if any(value.shape != p.shape for value in values[:2]):
        return f"the state of {name} has another shape than its parameter"
    return None


def _state(rule: Rule, group: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    if rule == "momentum":
        return {"first": state["momentum_buffer"]}
    return {
        "first": state["exp_avg"],
        "second": state["exp_avg_sq"],
        "largest": state["max_exp_avg_sq"] if group.get("amsgrad") else None,
        "corrections": bias_corrections(group, state["step"]),
        "rate": group["lr"],
        "eps": float(group["eps"]),
    }


def _no_gradient(rule: Rule, group: Mapping[str, Any], p: Tensor, gradient: Tensor | None) -> str | None:
    """Why the gradient that the step used is gone; None if it is still there."""
    if gradient is None:
        return "its gradient was cleared before the measurement, or it had none"
    foreach = group.get("foreach") or (group.get("foreach") is None and p.device.type != "cpu")
    copied = group.get("fused") or group.get("weight_decay") or group.get("maximize")
    if rule == "momentum" and group.get("nesterov") and foreach and not copied:
        # torch then adds μ·buffer to the gradients themselves, not to a copy
        return "SGD with Nesterov momentum and foreach has written into its gradient"
    return None
