"""The usual loop, for the cases whose fault is not in the loop, and the figures that scripts check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from zoo.registry import Watch

Loss = Callable[[Any, Tensor], Tensor]


def classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def fit(
    watch: Watch,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    objective: Loss = classes,
    *,
    clip: float | None = None,
    schedule: Any = None,
    **watching: Any,
) -> list[float]:
    """Train on the batches, and give the losses."""
    taken = []
    with watch(model, optimizer, **watching) as w:
        for x, y in batches:
            value = objective(model(x), y)
            optimizer.zero_grad()
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            w.log(loss=value)
            taken.append(float(value.detach()))
    return taken


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    outputs = model.eval()(x)
    outputs = getattr(outputs, "logits", outputs)
    return float((outputs.argmax(-1) == y).double().mean())


def last(losses: list[float], count: int = 20) -> float:
    """Mean of the last losses."""
    return sum(losses[-count:]) / len(losses[-count:])


@torch.no_grad()
def explained(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """R²."""
    left = (model.eval()(x) - y).square().mean(0)
    return float(1 - (left / y.var(0, correction=0)).mean())
