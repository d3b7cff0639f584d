"""Small real trainings that write to every tool at once, and to a run of learnscope for comparison."""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import learnscope as ls

os.environ["WANDB_ERROR_REPORTING"] = "false"
os.environ["WANDB_SILENT"] = "true"


@dataclass
class Training:
    """Where a training was recorded, and the numbers that it logged."""

    folder: Path
    losses: dict[int, float] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)
    accuracies: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)

    @property
    def board(self) -> Path:
        return self.folder / "board"

    @property
    def table(self) -> Path:
        return self.folder / "metrics.csv"

    @property
    def native(self) -> Path:
        return self.folder / "native"

    @property
    def wandb(self) -> Path:
        return next((self.folder / "wandb").glob("offline-run-*"))


def _data(n: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long()
    flipped = torch.rand(n, generator=generator) < noise
    return x, torch.where(flipped, 1 - y, y)


def train(folder: Path, kind: str, *, with_wandb: bool = True) -> Training:
    """`healthy`, `overfitting` (few examples, wrong labels) or `diverging` (a rate that grows, and NaN at last)."""
    training = Training(folder)
    overfits, diverges = kind == "overfitting", kind == "diverging"
    x, y = _data(40 if overfits else 2000, 0.3 if overfits else 0.02, 0)
    held_x, held_y = _data(400, 0.02, 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    # a schedule that goes up from step 80 on
    factor = (lambda step: 1.08 ** max(step - 80, 0)) if diverges else (lambda step: 0.998**step)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    sinks = _Sinks(training, kind, with_wandb)
    probes = [ls.Loss(), ls.LearningRate(every=1), ls.Holdout(every=10), ls.GradientFlow(every=10)]
    shuffled = torch.Generator().manual_seed(2)
    with ls.watch(model, optimizer, run=training.native, probes=probes, holdout=[(held_x, held_y)]) as w:
        for step in range(1, 201):
            rows = torch.randint(len(x), (32,), generator=shuffled)
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            if diverges and step == 200:
                loss = loss * math.nan
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            training.rates[step] = optimizer.param_groups[0]["lr"]
            optimizer.step()
            rate.step()
            w.log(loss=loss)
            training.losses[step], training.norms[step] = loss.item(), norm.item()
            logged = {"train/loss": loss.item(), "lr": training.rates[step], "grad_norm": norm.item()}
            if step % 10 == 0:
                with torch.no_grad():
                    logits = model(held_x)
                training.held_out[step] = nn.functional.cross_entropy(logits, held_y).item()
                training.accuracies[step] = (logits.argmax(1) == held_y).double().mean().item()
                logged |= {"val/loss": training.held_out[step], "val/accuracy": training.accuracies[step]}
            sinks.log(step, logged | {"speed": 100.0 + step % 7})
    sinks.close()
    return training


class _Sinks:
    """TensorBoard, wandb offline and a table, as a loop of its own would feed them."""

    def __init__(self, training: Training, kind: str, with_wandb: bool) -> None:
        self.board = SummaryWriter(str(training.board))
        self.file = training.table.open("w", newline="")
        self.table = csv.writer(self.file)
        self.columns = ["step", "train/loss", "lr", "grad_norm", "val/loss", "val/accuracy", "speed"]
        self.table.writerow(self.columns)
        self.run: Any = None
        if with_wandb:
            import wandb

            settings = wandb.Settings(console="off", x_disable_stats=True)
            self.run = wandb.init(
                mode="offline", dir=training.folder, project="p", config={"kind": kind, "api_key": "abc"},
                settings=settings,
            )  # fmt: skip

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.board.add_scalar(name, value, step)
        self.table.writerow([step, *(repr(values[name]) if name in values else "" for name in self.columns[1:])])
        if self.run is not None:
            self.run.log(values, step=step)

    def close(self) -> None:
        self.board.close()
        self.file.close()
        if self.run is not None:
            self.run.finish()


def ended() -> None:
    """Wait until wandb's own process has written all of its files: `finish` returns before."""
    import wandb

    wandb.finish()  # that of a trainer, which leaves it open
    wandb.teardown()
