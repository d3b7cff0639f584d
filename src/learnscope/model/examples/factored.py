"""Inner products of per-example gradients without computing the gradients, for models of linear layers.

For a layer y = W a + b with one row per example, the gradient of an example's loss is δ aᵀ for W and δ for b, where δ
is the gradient for y. So the inner product of two such gradients is (δ·δ′)(a·a′ + 1): one pass over a batch gives all
factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.batches import cut
from learnscope.model.examples.per_example import PerExample
from learnscope.model.outputs.evaluate import model_device
from learnscope.tensor.examples.products import row_products

AGREEMENT = 1e-3
"""Largest relative error of a product, compared with computed gradients, for which factors are used."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Factors of one linear layer: inputs [k, in], gradients of outputs [k, out]; which of its parameters count."""

    inputs: Tensor
    deltas: Tensor
    weight: bool
    bias: bool


@dataclass(frozen=True, slots=True)
class Factors:
    layers: list[Layer]
    losses: Tensor

    def dot(self, other: Factors) -> Tensor:
        """Inner product of each example's gradient with the same example's other gradient, [k] in float64."""
        total = torch.zeros(len(self.losses), dtype=torch.float64, device=self.losses.device)
        for own, others in zip(self.layers, other.layers, strict=True):
            inputs = row_products(own.inputs, others.inputs) * own.weight + float(own.bias)
            total += row_products(own.deltas, others.deltas) * inputs
        # an example without a position that counts has no gradient, rather than a gradient of zero
        return torch.where(self.losses.isnan() | other.losses.isnan(), torch.nan, total)


def linear_layers(per_example: PerExample) -> dict[str, nn.Linear] | None:
    """The linear layers that hold the chosen parameters; None if one is held elsewhere, or by two layers."""
    left = set(per_example.names)
    layers: dict[str, nn.Linear] = {}
    seen: set[int] = set()
    for name, module in per_example.model.named_modules(remove_duplicate=False):
        own = {f"{name}.{key}".lstrip(".") for key, p in module._parameters.items() if p is not None}
        if type(module) is nn.Linear and own & set(per_example.names):
            layers[name] = module
            left -= own
        if any(id(p) in seen for p in module._parameters.values() if p is not None):
            return None  # tied: its gradient is the sum of two outer products
        seen |= {id(p) for p in module._parameters.values() if p is not None}
    return None if left else layers


def factors(per_example: PerExample, batch: Any) -> Factors | None:
    """The factors of a chunk; None unless every layer is called exactly once, with one row per example."""
    layers = linear_layers(per_example)
    if layers is None:
        return None
    task, model = per_example.task, per_example.model
    batch = task.to(batch, model_device(model))
    size = task.size(batch)
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    with per_example.differentiable():
        for name, module in layers.items():
            module.register_forward_hook(_keep(calls[name]))  # the guard removes it
        out = task.outputs(model, batch)
        if out.losses is None or any(len(seen) != 1 for seen in calls.values()):
            return None
        kept = {name: seen[0] for name, seen in calls.items()}
        if any(y.ndim != 2 or y.shape[0] != size or not y.requires_grad for _, y in kept.values()):
            return None
        count = torch.zeros(size, device=out.losses.device).index_add(
            0, out.example, torch.ones_like(out.losses).float()
        )
        sums = torch.zeros(size, dtype=out.losses.dtype, device=out.losses.device)
        losses = sums.index_add(0, out.example, out.losses) / count.clamp(min=1)
        if not losses.requires_grad:
            return None
        deltas = torch.autograd.grad(losses.sum(), [y for _, y in kept.values()], materialize_grads=True)
    chosen = set(per_example.names)
    factored = [
        Layer(a, delta.detach(), f"{name}.weight".lstrip(".") in chosen, f"{name}.bias".lstrip(".") in chosen)
        for (name, (a, _)), delta in zip(kept.items(), deltas, strict=True)
    ]
    return Factors(factored, torch.where(count > 0, losses.detach(), torch.nan))


def agree(per_example: PerExample, batch: Any) -> bool | None:
    """Whether factors give the norms of computed gradients, tested on the first two examples; None if that fails.

    They do not if the examples of a batch influence each other, or if a weight is also used outside of its layer. A
    single example, or gradients of zero, would show neither.
    """
    if per_example.task.size(batch) < 2:
        return None
    few = cut(per_example.task, batch, 0, 2)
    factored = factors(per_example, few)
    if factored is None:
        return False
    rows, losses = per_example(few)
    squares = row_products(rows, rows)
    if not ((squares > 0) & squares.isfinite()).all():
        return None
    close = torch.allclose(factored.dot(factored), squares, rtol=AGREEMENT, atol=0.0)
    return close and torch.allclose(factored.losses, losses.to(factored.losses.dtype), rtol=AGREEMENT)


def _keep(into: list[tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    def hook(_module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        into.append((inputs[0].detach().clone(), output))
        return output.clone()  # later code may write in place, and the gradient is needed for the layer's own output

    return hook
