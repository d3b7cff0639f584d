"""Records and trainings for the tests of sinks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope.record import Evidence


def record(step: int, *tables: ls.Table, probe: str = "P", time: float = 0.0, attempt: int = 0) -> ls.Record:
    return ls.Record(
        probe=probe, step=step, phase="after_step", source="watch", time=time, cost=0.0, attempt=attempt, tables=tables
    )


def table(kind: str, scopes: list[str], name: str, values: list[Any], **labels: Any) -> ls.Table:
    return ls.Table(kind, scopes, [ls.Column(name, [None] * len(values), labels).finished(values)])


def one(name: str, value: float | None, **labels: Any) -> ls.Table:
    return table("model", ["model"], name, [value], **labels)


def finding(kind: str = "nonfinite", severity: Any = "critical", title: str = "The loss is NaN") -> ls.Finding:
    evidence = Evidence(probe="Loss", name="loss", n=1, first_step=3)
    return ls.Finding(
        kind=kind, severity=severity, title=title, detail="It broke at step 3.", advice="Lower the rate.",
        evidence=evidence,
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mlp(self.attention(x)))


class Deep(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Block() for _ in range(layers)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(steps: int, *, layers: int = 2, nan_at: int | None = None, **options: Any) -> ls.Watch:
    """A watched loop; with `alerts`, one that breaks at `nan_at` tells so."""
    torch.manual_seed(0)
    model = Deep(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(8, 4)
    y = (x[:, 0] > 0).long()
    options.setdefault("probes", [ls.GradientFlow(every=2), ls.Loss(), ls.LearningRate(every=2)])
    w = ls.watch(model, optimizer, **options)
    for step in range(1, steps + 1):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * float("nan") if step == nan_at else loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        w.log(loss=loss)
    w.close()
    return w
