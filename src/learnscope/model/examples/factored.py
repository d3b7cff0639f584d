"""Inner products of per-example gradients without the gradients, for models whose parameters are linear layers'.

For a layer y = W a + b with one row an example, the gradient of an example's loss is δ aᵀ and δ, δ being that with
respect to y. So an inner product of two such gradients is (δ·δ′)(a·a′ + 1): one pass over a batch gives all factors.
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
"""How far a product may be from that of gradients written out, relative to the norms, before factors are given up."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Factors of one linear layer: inputs [k, in], gradients of outputs [k, out]; which parameters count."""

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
        for one, two in zip(self.layers, other.layers, strict=True):
            inputs = row_products(one.inputs, two.inputs) * one.weight + float(one.bias)
            total += row_products(one.deltas, two.deltas) * inputs
        # an example without a position that counts has no gradient, rather than one of zero
        return torch.where(self.losses.isnan() | other.losses.isnan(), torch.nan, total)


def linear_layers(differ: PerExample) -> dict[str, nn.Linear] | None:
    """The layers that the chosen parameters belong to, each parameter to one; None if there is anything else."""
    left = set(differ.names)
    found: dict[str, nn.Linear] = {}
    seen: set[int] = set()
    for name, module in differ.model.named_modules(remove_duplicate=False):
        own = {f"{name}.{key}".lstrip(".") for key, p in module._parameters.items() if p is not None}
        if type(module) is nn.Linear and own & set(differ.names):
            found[name] = module
            left -= own
        if any(id(p) in seen for p in module._parameters.values() if p is not None):
            return None  # tied: the gradient is a sum of two outer products
        seen |= {id(p) for p in module._parameters.values() if p is not None}
    return None if left else found


def factors(differ: PerExample, batch: Any) -> Factors | None:
    """The factors of a chunk; None where a layer is not called exactly once, with one row an example."""
    layers = linear_layers(differ)
    if layers is None:
        return None
    task, model = differ.task, differ.model
    batch = task.to(batch, model_device(model))
    size = task.size(batch)
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    with differ.differentiable():
        for name, module in layers.items():
            module.register_forward_hook(_keep(calls[name]))  # goes when the guard goes
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
    chosen = set(differ.names)
    made = [
        Layer(a, delta.detach(), f"{name}.weight".lstrip(".") in chosen, f"{name}.bias".lstrip(".") in chosen)
        for (name, (a, _)), delta in zip(kept.items(), deltas, strict=True)
    ]
    return Factors(made, torch.where(count > 0, losses.detach(), torch.nan))


def agree(differ: PerExample, batch: Any) -> bool | None:
    """Whether factors give the norms of gradients written out, on the first two examples; None if they cannot tell.

    They do not where examples of a batch see each other, or where a weight is also used outside its layer. A single
    example, or gradients of zero, would show neither.
    """
    if differ.task.size(batch) < 2:
        return None
    few = cut(differ.task, batch, 0, 2)
    found = factors(differ, few)
    if found is None:
        return False
    rows, losses = differ(few)
    squares = row_products(rows, rows)
    if not ((squares > 0) & squares.isfinite()).all():
        return None
    close = torch.allclose(found.dot(found), squares, rtol=AGREEMENT, atol=0.0)
    return close and torch.allclose(found.losses, losses.to(found.losses.dtype), rtol=AGREEMENT)


def _keep(into: list[tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    def hook(_module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        into.append((inputs[0].detach().clone(), output))
        return output.clone()  # what follows may write in place, and the gradient wanted is that of the layer

    return hook
