"""Inner products of per-example gradients, where possible without computing the gradients.

For a layer y = W a + b with one row per example, the gradient of an example's loss is δ aᵀ for W and δ for b, where δ
is the gradient for y. So the inner product of two such gradients is (δ·δ′)(a·a′ + 1): one pass over a batch gives all
factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.data import cut, joined
from learnscope.model.examples.per_example import MAX_BYTES, PerExample
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Task
from learnscope.tensor.examples.products import row_products

AGREEMENT = 1e-3
"""Largest relative error of a product, compared with computed gradients, for which factors are used."""


def example_gradient_norms(
    model: nn.Module, task: Task, batches: Sequence[Any], *, max_bytes: int = MAX_BYTES
) -> Tensor:
    """GraNd: ‖∇ℓ_i‖ over all trainable parameters for each example i, [N] in float64 on the CPU (arXiv 2107.07075).

    In eval mode; the model's own mode is kept. NaN for an example without a target that counts.
    """
    per_example = PerExample(model, task, max_bytes=max_bytes)
    return torch.cat([squares for (squares, _), _ in gradient_products([per_example], batches)]).sqrt()


def gradient_products(models: Sequence[PerExample], batches: Iterable[Any]) -> Iterator[tuple[Tensor, list[str]]]:
    """Inner products of each example's gradients in one or two models, chunk by chunk, and how they were computed.

    A chunk of k examples is [2, k] for one model: g·g and losses; and [5, k] for two: g·g, g·g′, g′·g′ and the losses
    of both. In float64 on the CPU.
    """
    factored: bool | None = None  # until it is tested whether factors give the right products
    for batch in joined(models[0].task, batches, models[0].max_bytes):
        for large in models[0].parts(batch, rows=False):
            if factored is None:
                answers = [_agree(model, large) for model in models]
                factored = False if False in answers else True if None not in answers else None
            sides = [factors(model, large) if factored else None for model in models]
            computed = [side for side in sides if side is not None]
            if len(computed) == len(models):
                products = [first.dot(second) for first, second in combinations_with_replacement(computed, 2)]
                yield _stacked(*products, *(side.losses for side in computed)), ["factored"]
                continue
            for part in models[0].parts(large):
                gradients, losses = zip(*(model(part) for model in models), strict=True)
                products = [row_products(*pair) for pair in combinations_with_replacement(gradients, 2)]
                yield _stacked(*products, *losses), [model.how for model in models]


def _stacked(*columns: Tensor) -> Tensor:
    return torch.stack([column.detach().cpu().double() for column in columns])


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


def factors(per_example: PerExample, batch: Any) -> Factors | None:
    """The factors of a chunk; None unless every layer is called exactly once, with one row per example."""
    layers = _linear_layers(per_example)
    if layers is None:
        return None
    task, model = per_example.task, per_example.model
    batch = task.to(batch, model_device(model))
    size = task.size(batch)
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    with per_example.differentiable():
        for name, module in layers.items():
            module.register_forward_hook(partial(_record, calls[name]))  # the guard removes it
        out = task.outputs(model, batch)
        if out.losses is None or any(len(layer_calls) != 1 for layer_calls in calls.values()):
            return None
        outputs = [y for [(_, y)] in calls.values()]
        if any(y.ndim != 2 or y.shape[0] != size or not y.requires_grad for y in outputs):
            return None
        zeros = torch.zeros(size, device=out.losses.device)
        count = zeros.index_add(0, out.example, torch.ones_like(out.losses).float())
        losses = zeros.to(out.losses.dtype).index_add(0, out.example, out.losses) / count.clamp(min=1)
        if not losses.requires_grad:
            return None
        deltas = torch.autograd.grad(losses.sum(), outputs, materialize_grads=True)
    chosen = set(per_example.names)
    factored = [
        Layer(a, delta.detach(), f"{name}.weight".lstrip(".") in chosen, f"{name}.bias".lstrip(".") in chosen)
        for (name, [(a, _)]), delta in zip(calls.items(), deltas, strict=True)
    ]
    return Factors(factored, torch.where(count > 0, losses.detach(), torch.nan))


def _linear_layers(per_example: PerExample) -> dict[str, nn.Linear] | None:
    """The linear layers that hold the chosen parameters; None if one is held elsewhere, or by two layers."""
    names = set(per_example.names)
    layers: dict[str, nn.Linear] = {}
    covered: set[str] = set()
    visited: set[int] = set()
    for path, module in per_example.model.named_modules(remove_duplicate=False):
        own = {f"{path}.{key}".lstrip("."): id(p) for key, p in module._parameters.items() if p is not None}
        if type(module) is nn.Linear and own.keys() & names:
            layers[path] = module
            covered |= own.keys()
        if not visited.isdisjoint(own.values()):
            return None  # tied: its gradient is the sum of two outer products
        visited |= set(own.values())
    return layers if names <= covered else None


def _agree(per_example: PerExample, batch: Any) -> bool | None:
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


def _record(calls: list[tuple[Tensor, Tensor]], _module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    calls.append((inputs[0].detach().clone(), output))
    return output.clone()  # later code may write in place, and the gradient is needed for the layer's own output
