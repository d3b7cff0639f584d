"""Training with telemetry gives bit for bit what training without it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from telemetry.loops import Net, batches, lines, train

EPOCHS = 3


class Harmful(TrainingTelemetry):
    """Draws a random number behind the guard's back: the positive control."""

    def on_batch_end(self, model: nn.Module, *rest: Any, **options: Any) -> None:
        super().on_batch_end(model, *rest, **options)
        torch.randn(1)


class StatisticsMoved(TrainingTelemetry):
    def on_batch_end(self, model: nn.Module, *rest: Any, **options: Any) -> None:
        super().on_batch_end(model, *rest, **options)
        with torch.random.fork_rng():
            model(torch.ones(4, 6))


class Careless(TrainingTelemetry):
    """Everything that a metric of one's own should not do, and the guard puts right."""

    def _compute_careless(self, model: Any) -> Any:
        torch.manual_seed(99)
        model.train()
        loss = model(torch.randn(8, 6)).square().mean()
        loss.backward()
        model.zero_grad()
        for p in model.parameters():
            p.requires_grad_(False)
        model.register_forward_hook(lambda *_: 1 / 0)
        model.backbone[1].running_mean.fill_(7.0)
        return loss.item()


def outcome(kind: type[TrainingTelemetry] | None, folder: Path) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Losses, learning rates, random state and modes; and the final state of model and optimizer."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    x, y = (torch.cat(parts) for parts in zip(*batches(8), strict=True))
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    telemetry = None
    if kind is not None:
        telemetry = kind(TelemetryConfig(collect_every_n=1, output_dir=folder), strict=True)
        telemetry.set_holdout_data(loader)
    seen: list[Any] = []
    for epoch in range(EPOCHS):
        seen += train(model, optimizer, loader, telemetry, epoch=epoch, after=lambda _: scheduler.step())
        seen.append(scheduler.get_last_lr())
    if telemetry is not None:
        telemetry.close()
        assert len(lines(telemetry)) == EPOCHS * 4
    seen += [torch.get_rng_state().tolist(), [module.training for module in model.modules()]]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        state |= {f"{key} of {number}": torch.as_tensor(value).clone() for key, value in moments.items()}
    return seen, state


def same(a: tuple[list[Any], dict[str, torch.Tensor]], b: tuple[list[Any], dict[str, torch.Tensor]]) -> bool:
    return a[0] == b[0] and a[1].keys() == b[1].keys() and all(torch.equal(a[1][key], b[1][key]) for key in a[1])


@pytest.mark.parametrize("kind", [TrainingTelemetry, Careless])
def test_nothing_that_training_gives_depends_on_telemetry(tmp_path: Path, kind: type[TrainingTelemetry]) -> None:
    assert same(outcome(kind, tmp_path / "t"), outcome(None, tmp_path))


@pytest.mark.parametrize("kind", [Harmful, StatisticsMoved])
def test_the_comparison_notices_harm(tmp_path: Path, kind: type[TrainingTelemetry]) -> None:
    assert not same(outcome(kind, tmp_path / "t"), outcome(None, tmp_path))


def test_a_backward_that_is_pending_goes_through(tmp_path: Path) -> None:
    """Between forward and backward of a second loss, as with two heads: no buffer or weight has changed its version."""
    model = Net()
    model.backbone[1].eval()  # keeps its statistics for backward
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.0)
    pending = model(batches(1)[0][0]).sum()
    with TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=tmp_path / "t"), strict=True) as telemetry:
        telemetry.set_holdout_data(batches(2))
        telemetry.on_batch_end(model, optimizer, 1, 0)
    pending.backward()
    assert model.head.weight.grad is not None
