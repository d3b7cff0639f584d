"""A session that nobody closed, as when a cell of a notebook is run again: it goes with its model and optimizer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad, clip_grad_norm_
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

import learnscope as ls
from learnscope.analysis import AnalysisConfig, ModelAnalysisManager
from learnscope.session.steps import clipping, objectives, scaling, schedules
from learnscope.session.telling.listeners import remove_gone

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
    remove_gone()  # hooks of other tests' sessions
    before = [len(module.listeners) for module in LISTENED]
    globally = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
    model = forgotten(tmp_path / "run", steps)
    gc.collect()
    assert model() is None, "a model that cannot be freed takes a GPU's memory until the process ends"
    assert [len(module.listeners) for module in LISTENED] == before
    ls.watch(nn.Linear(1, 1), None, probes=[ls.Loss()]).close()  # the next session removes its last hooks
    assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == globally
    if before == [0] * len(LISTENED):
        assert clip_grad._clip_grads_with_norm_.__module__ == clip_grad.__name__
        assert not hasattr(lr_scheduler.LRScheduler._update_lr, "__wrapped__")
    assert ls.open_run(tmp_path / "run").manifest["status"] == "ended without close()"


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_it_may_go_while_torch_calls_the_hooks_of_another_training(
    register: Callable[..., RemovableHandle], tmp_path: Path
) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    gc.disable()  # until torch is in the middle of its hooks
    handles: list[RemovableHandle] = []
    try:
        old = forgotten(tmp_path / "run", 3)
        handles = [register(lambda *_: collect()), register(lambda *_: None)]  # torch goes on to the second
        assert old() is not None
        step(model, optimizer)
        assert old() is None
    finally:
        gc.enable()
        for handle in handles:
            handle.remove()


def collect() -> None:
    gc.collect()


def test_an_analysis_may_go_while_torch_calls_the_hooks_of_its_optimizer(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for searches in (False, True):
        manager = ModelAnalysisManager.create(AnalysisConfig(interval=1, gradient_enabled=True))
        for _ in range(2):
            step(model, optimizer)
            manager.on_optimizer_step(model, optimizer=None if searches else optimizer)
        assert len(optimizer._optimizer_step_pre_hooks) > (1 if searches else 0)
        held = weakref.ref(manager)
        optimizer.register_step_pre_hook(lambda *_: collect())
        hooks = len(optimizer._optimizer_step_pre_hooks)
        gc.collect()
        gc.disable()
        del manager
        step(model, optimizer)
        gc.enable()
        assert held() is None
        step(model, optimizer)  # its hooks are there, and say nothing
        ls.watch(nn.Linear(1, 1), None, probes=[ls.Loss()]).close()
        assert len(optimizer._optimizer_step_pre_hooks) < hooks
    assert not recwarn.list


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
