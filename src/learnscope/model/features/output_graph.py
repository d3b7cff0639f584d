"""Where a model's outputs come from, by their autograd graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

MOST_NODES = 20_000
"""Nodes of a graph that are visited: of a larger one nothing is said."""


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
