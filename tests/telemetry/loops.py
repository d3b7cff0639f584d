"""Small models, loops and readers that the tests of telemetry share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry

Weights = dict[str, NDArray[np.float64]]


class Net(nn.Module):
    """A backbone and a head, with dropout and batch norm: what a careless look disturbs."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 5))
        self.head = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(x))
        return logits


class PairNet(nn.Module):
    """Which of two: scores both with the same backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(6, 4)
        self.head = nn.Linear(8, 2)

    def forward(self, img1: Tensor, img2: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([torch.tanh(self.backbone(img1)), torch.tanh(self.backbone(img2))], 1))
        return logits


def batches(count: int, size: int = 8, classes: int = 2) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(11)
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(classes, (size,), generator=generator))
        for _ in range(count)
    ]


def pair_batches(count: int, size: int = 8) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(12)
    return [
        {
            "img1": torch.randn(size, 6, generator=generator),
            "img2": torch.randn(size, 6, generator=generator),
            "winner": torch.randint(2, (size,), generator=generator),
        }
        for _ in range(count)
    ]


def telemetry_in(folder: Path, *, every: int = 1, strict: bool = True, **options: Any) -> TrainingTelemetry:
    """Telemetry that raises what goes wrong, unless a test is about that."""
    resume, task = options.pop("resume", False), options.pop("task", None)
    config = TelemetryConfig(collect_every_n=every, output_dir=folder, **options)
    return TrainingTelemetry(config, strict=strict, resume=resume, task=task)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterable[tuple[Tensor, Tensor]],
    telemetry: TrainingTelemetry | None = None,
    *,
    epoch: int = 0,
    start: int = 1,
    after: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> list[float]:
    """The documented loop over one epoch; the losses."""
    losses = []
    for batch_idx, (x, y) in enumerate(data, start):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if telemetry is not None:
            telemetry.on_batch_end(model, optimizer, batch_idx, epoch, "cpu", (x, y), **options)
        after(batch_idx)
    return losses


def pretend_gradients(model: nn.Module, seed: int = 3, scale: float = 1.0) -> None:
    """Give every trainable parameter a random gradient."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.requires_grad:
            p.grad = (torch.randn(p.shape, generator=generator) * scale).to(p.dtype)


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def lines(source: TrainingTelemetry | Path) -> list[dict[str, Any]]:
    """Every line, read as strictly as JSON is defined; each must be whole."""
    path = source if isinstance(source, Path) else source.metrics_file
    raw = path.read_bytes()
    assert raw == b"" or raw.endswith(b"\n"), "the last line is torn"
    return [json.loads(line, parse_constant=refuse) for line in raw.split(b"\n")[:-1]]


def wide(model: nn.Module) -> Weights:
    """A float64 copy of the weights."""
    return {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}


def norm(arrays: Iterable[NDArray[Any]]) -> float:
    return float(np.sqrt(sum(float((np.asarray(a, np.float64) ** 2).sum()) for a in arrays)))


def gradient_norm(model: nn.Module, *prefixes: str) -> float:
    """In float64, of the parameters whose name begins with one of the prefixes; of all, without any."""
    named = [(name, p) for name, p in model.named_parameters() if not prefixes or name.startswith(prefixes)]
    return norm(p.grad.double().numpy() for _, p in named if p.grad is not None)


def distance(new: Mapping[str, Any], old: Mapping[str, Any], *prefixes: str) -> float:
    return norm(new[name] - old[name] for name in new if not prefixes or name.startswith(prefixes))


def without_times(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "timestamp"} for line in found]
