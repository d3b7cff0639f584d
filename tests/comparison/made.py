"""Runs to compare: some written by hand, some really trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import learnscope as ls
from findings.made_run import MadeRun
from learnscope.run import Run
from learnscope.store.backend import FolderBackend

if TYPE_CHECKING:
    from torch import nn  # runs written by hand do without torch

Values = Mapping[int, float | None]


def made(losses: Values = {}, folder: Path | None = None, **model: Any) -> MadeRun:  # noqa: B006 (only read)
    """A run with these losses by step."""
    run = MadeRun(FolderBackend.create(folder) if folder is not None else None, **model)
    for step, value in losses.items():
        run.loss(step, value)
    return run


def opened(run: MadeRun) -> Run:
    run.backend.put_manifest(run.manifest)
    return Run(run.backend)


def compared(*runs: MadeRun, **options: Any) -> ls.Comparison:
    names = [chr(ord("a") + n) for n in range(len(runs))]
    return ls.compare([opened(run) for run in runs], names=names, **options)


def small_model() -> nn.Sequential:
    from torch import nn

    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def train(
    folder: Path | None, steps: int = 12, *, lr: float = 0.1, shuffled_from: int | None = None,
    probes: Sequence[Any] | None = None, model: nn.Module | None = None, save_at: Sequence[int] = (),
) -> nn.Module:  # fmt: skip
    """A seeded training under watch; the same bits every time, until from a step on its batches come in reverse."""
    import torch

    torch.manual_seed(0)
    fresh = small_model()
    model = fresh if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    inputs = torch.randn(steps, 16, 6)
    targets = inputs[..., :3].argmax(-1)
    order = list(range(steps))
    if shuffled_from is not None:
        order[shuffled_from - 1 :] = reversed(order[shuffled_from - 1 :])
    probes = [ls.Loss(), ls.GradientFlow(every=1), ls.ParameterChange(every=2)] if probes is None else probes
    with ls.watch(model, optimizer, run=folder, probes=probes) as w:
        for step, place in enumerate(order, start=1):
            loss = torch.nn.functional.cross_entropy(model(inputs[place]), targets[place])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            if step in save_at:
                w.save_state()
    return model
