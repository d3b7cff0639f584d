"""A session that nobody closed, as when a cell of a notebook is run again: it goes with its model and optimizer."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad, clip_grad_norm_
from torch.optim import lr_scheduler
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import learnscope as ls
from learnscope.session.steps import clipping, objectives, scaling, schedules

LISTENED = (clipping, objectives, scaling, schedules)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    loss = F.cross_entropy(model(torch.randn(8, 3)), torch.arange(8) % 4)
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss


def forgotten(run: Path, steps: int) -> weakref.ref[nn.Module]:
    """A loop whose function returns without closing; nobody holds the model afterwards."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.1), nn.Linear(5, 4))
    optimizer = torch.optim.Adam(model.parameters())
    w = ls.watch(model, optimizer, run=run, holdout=[(torch.randn(8, 3), torch.arange(8) % 4)])
    for _ in range(steps):
        w.log(loss=step(model, optimizer))
    return weakref.ref(model)


@pytest.mark.parametrize("steps", [0, 3, 21])
def test_it_keeps_nothing_alive_and_leaves_torch_as_it_was(steps: int, tmp_path: Path) -> None:
    gc.collect()
    before = [len(module.listeners) for module in LISTENED]
    globally = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
    model = forgotten(tmp_path / "run", steps)
    gc.collect()
    assert model() is None, "a model that cannot be freed takes a GPU's memory until the process ends"
    assert [len(module.listeners) for module in LISTENED] == before
    assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == globally
    if before == [0] * len(LISTENED):
        assert clip_grad._clip_grads_with_norm_.__module__ == clip_grad.__name__
        assert not hasattr(lr_scheduler.LRScheduler._update_lr, "__wrapped__")
    assert ls.open_run(tmp_path / "run").manifest["status"] == "ended without close()"


def test_without_a_name_it_records_as_long_as_the_optimizer_is_there(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.GradientFlow(every=1)])
    gc.collect()
    for _ in range(3):
        step(model, optimizer)
        gc.collect()
        assert ls.open_run(tmp_path / "run").manifest["status"] == "running"
    del model, optimizer
    gc.collect()
    run = ls.open_run(tmp_path / "run")
    assert run.manifest["status"] == "ended without close()"
