"""Where a model's outputs come from, by their autograd graph, and what a backward brings to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.core.forwards import ForwardCall
from learnscope.tensor.features.outputs import gradient_disorder

MOST_NODES = 20_000
"""Nodes of a graph that are visited: of a larger one nothing is said."""
ROWS = 8, 4096
"""Examples of a batch between which the gradient of one output each is looked at."""


class CalledModules:
    """Counts the calls of the modules that have parameters of their own, within one forward of the model."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {
            name: module
            for name, module in model.named_modules()
            if next(module.parameters(recurse=False), None) is not None
        }
        self.calls: dict[str, int] = {}

    def called(self, name: str, *_given: Any) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def reset(self) -> None:
        self.calls.clear()

    def lost(self, uses: Mapping[int, int]) -> dict[str, float]:
        """Modules that were called several times, of which the outputs come from some calls only: the share of others.

        `uses` is how often each parameter (id) is used in the graph of the outputs.
        """
        shares = {}
        for name, calls in self.calls.items():
            used = max((uses.get(id(p), 0) for p in self.modules[name].parameters(recurse=False)), default=0)
            if calls > 1 and 0 < used < calls:
                shares[name] = 1 - used / calls
        return shares


def parameter_uses(outputs: Tensor) -> tuple[dict[int, int], list[Tensor]] | None:
    """How often each leaf (id) is used in the graph of the outputs, and the leaves; None of too large a graph."""
    waiting, seen = [outputs.grad_fn], set()
    uses: dict[int, int] = {}
    leaves: dict[int, Tensor] = {}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if len(seen) > MOST_NODES:
            return None
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is None:
                waiting.append(following)
            else:
                uses[id(leaf)], leaves[id(leaf)] = uses.get(id(leaf), 0) + 1, leaf
    return uses, list(leaves.values())


def look_at_graph(call: ForwardCall, outputs: Tensor, parameters: Collection[int], modules: CalledModules) -> None:
    """Notes in a call what its outputs come from."""
    found = parameter_uses(outputs) if outputs.grad_fn is not None else None
    if found is None:
        return
    uses, leaves = found
    call.outside = sum(leaf.numel() for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in parameters)
    if not torch.is_autocast_enabled(outputs.device.type):  # which uses one cast of a weight for all calls
        call.lost_calls = modules.lost(uses)


def follow_backward(call: ForwardCall, outputs: Tensor) -> None:
    """Note, when a backward comes by outputs of one number an example, whether it knows of more than the outputs."""
    followed = outputs.requires_grad and not outputs.is_leaf and outputs.is_floating_point()
    if followed and outputs.ndim and outputs.numel() == len(outputs) and ROWS[0] <= len(outputs) <= ROWS[1]:
        outputs.register_hook(partial(_come_by, call, outputs.detach().clone()))


def _come_by(call: ForwardCall, outputs: Tensor, gradient: Tensor) -> None:
    if not torch.compiler.is_compiling():
        call.disorder = gradient_disorder(outputs, gradient.detach())
