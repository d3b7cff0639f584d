"""One guarded pass of a model over fixed batches: logits, targets, losses, and features of named layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.options import nearest
from learnscope.task import Task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of a pass, on the CPU, with the positions of all batches concatenated."""

    logits: Tensor
    targets: Tensor | None
    losses: Tensor | None
    example: Tensor
    """For each position, the number of the example it belongs to."""
    features: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, batches: Sequence[Any], layers: Sequence[str] = ()) -> Evaluation:
    """Run `model` in eval mode over `batches` and leave it as it was."""
    device = model_device(model)
    parts: list[tuple[Tensor | None, ...]] = []
    features: dict[str, list[Tensor]] = {name: [] for name in layers}
    examples = 0
    with guard(model):
        # the guard removes the hooks
        for name in layers:
            find_layer(model, name).register_forward_hook(partial(_keep, features[name]))
        for batch in batches:
            out = task.outputs(model, task.to(batch, device))
            values = (out.logits, out.targets, out.losses, out.example + examples)
            parts.append(tuple(None if value is None else value.detach().cpu() for value in values))
            examples += task.size(batch)
    by_layer = {name: torch.cat(outputs) for name, outputs in features.items()}
    columns: list[Any] = [*(joined_if_all(column) for column in zip(*parts, strict=True)), by_layer]
    return Evaluation(*columns)


def gradients(model: nn.Module, task: Task, batch: Any) -> dict[str, Tensor]:
    """Gradients of the mean loss on one batch, in eval mode, without touching those of the training loop."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError("no parameter of the model requires a gradient: there is nothing to differentiate")
    with guard(model), torch.enable_grad():
        loss = task.loss(model, task.to(batch, model_device(model)))
        computed = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    return {name: g.detach() for (name, _), g in zip(named, computed, strict=True) if g is not None}


def model_device(model: nn.Module) -> torch.device:
    """The device of the model's first parameter or buffer."""
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))


class NoLayer(KeyError, ValueError):
    """A layer that the model does not have; the message lists close names."""

    def __str__(self) -> str:
        return str(self.args[0])  # that of a KeyError is quoted


def find_layer(model: nn.Module, name: str) -> nn.Module:
    """The submodule called `name`, also inside the wrapper of torch.compile."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    modules: dict[str, nn.Module] = dict(inner.named_modules())
    if name not in modules:
        close = nearest(name, modules, most=3)
        others = [other for other in modules if other]
        few = f"; it has {', '.join(others[:6])}{', …' if len(others) > 6 else ''}" if others and not close else ""
        raise NoLayer(f"the model has no layer {name!r}; close names: {', '.join(close) or 'none'}{few}")
    return modules[name]


def _keep(features: list[Tensor], _module: nn.Module, _inputs: Any, output: Any) -> None:
    while isinstance(output, tuple | list):
        output = output[0]
    if isinstance(output, dict):
        output = next(iter(output.values()))
    features.append(output.detach().cpu())


def joined_if_all(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The parts concatenated; None if one of them is missing."""
    present = [part for part in parts if part is not None]
    return torch.cat(present) if len(present) == len(parts) else None
