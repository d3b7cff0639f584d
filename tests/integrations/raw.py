"""A loop without any trainer, and what its steps were: what trainers and their runs are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import learnscope as ls

X = torch.randn(44, 5, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long()
HELD_X = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
HELD_Y = (HELD_X[:, 0] > 0).long() + 2 * (HELD_X[:, 1] > 0).long()
BATCH, PARTS, CLIP, RATE, DECAY = 4, 3, 0.5, 0.05, 0.9
"""Eleven batches an epoch: the last step of an epoch has two of three micro-batches."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 4))


def data() -> DataLoader[Any]:
    """In an order that does not depend on how often a trainer asks for an iterator."""
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(3)).tolist()
    return DataLoader(TensorDataset(X, Y), batch_size=BATCH, sampler=order)


def held_out() -> DataLoader[Any]:
    return DataLoader(TensorDataset(HELD_X, HELD_Y), batch_size=8)


def probes() -> list[ls.Probe]:
    gradients = [ls.GradientFlow(every=1), ls.ParameterChange(every=1), ls.LearningRate(every=1)]
    return [*gradients, ls.Loss(), ls.Holdout(every=2, keep_arrays=False)]


def norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt())


@dataclass
class Steps:
    """What each optimizer step was given and did."""

    loss: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)


def clip_norm(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, CLIP)


def train(
    epochs: int, clip: Callable[[list[nn.Parameter]], Any] = clip_norm, autocast: bool = False
) -> tuple[nn.Module, Steps]:
    """Micro-batches weigh a third each, also where a step has two, as Lightning and Accelerate weigh them."""
    model, steps, loader = net(), Steps(), data()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=RATE)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)
    for _ in range(epochs):
        losses: list[float] = []
        for number, (x, y) in enumerate(loader, start=1):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(x), y)
            (loss / PARTS).backward()
            losses.append(float(loss.detach()))
            if number % PARTS and number < len(loader):
                continue
            steps.loss.append(sum(losses) / len(losses))
            losses = []
            steps.before.append(norm([p.grad for p in parameters if p.grad is not None]))
            clip(parameters)
            steps.after.append(norm([p.grad for p in parameters if p.grad is not None]))
            steps.rate.append(optimizer.param_groups[0]["lr"])
            old = [p.detach().clone() for p in parameters]
            optimizer.step()
            decay.step()
            optimizer.zero_grad()
            steps.moved.append(norm([p.detach() - before for p, before in zip(parameters, old, strict=True)]))
            with torch.no_grad():
                steps.held_out.append(float(F.cross_entropy(model(HELD_X), HELD_Y)))
    return model, steps


def recorded(run: ls.Run) -> Steps:
    """The same, as a run has it."""
    norms = run.frame("GradientFlow", "norm", "model").sort_values("step")
    losses = run.frame("Loss", "loss", "model").sort_values("step")
    return Steps(
        list(losses.value),
        list(norms[norms.stage == "before_clip"].value),
        list(norms[norms.stage == "stepped"].value),
        list(run.frame("ParameterChange", "l2", "model").sort_values("step").value),
        list(run.frame("LearningRate", "learning_rate").sort_values("step").value),
        list(run.frame("Holdout", "holdout_loss").sort_values("step").value),
    )


def assert_equal(found: Steps, raw: Steps, *, rel: float = 1e-5) -> None:
    import pytest

    for name in ("loss", "before", "after", "moved", "rate"):
        assert getattr(found, name) == pytest.approx(getattr(raw, name), rel=rel), name
    assert found.held_out == pytest.approx(raw.held_out[1::2], rel=rel)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("net."): value.detach().clone() for name, value in model.state_dict().items()}


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]
