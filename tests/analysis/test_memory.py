"""What stays in memory from one measurement to the next: the kept weights, and nothing else."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from analysis.loops import Net, batches
from learnscope.analysis import AnalysisConfig, ModelAnalysisManager

METRICS = [option.name for option in fields(AnalysisConfig) if option.name.endswith("_enabled")]


def create(**options: Any) -> ModelAnalysisManager:
    return ModelAnalysisManager.create(AnalysisConfig.from_dict({"interval": 1, **options}), strict=True)


def step(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def _others_set_aside() -> Iterator[None]:
    """Whatever was there before is neither collected nor counted: going through it all takes longer than the test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def living() -> int:
    gc.collect()
    return sum(issubclass(type(something), Tensor) for something in gc.get_objects())


@pytest.mark.usefixtures("_others_set_aside")
@pytest.mark.parametrize("metric", METRICS)
def test_a_long_run_holds_no_more_tensors_than_a_short_one(metric: str) -> None:
    model, given = Net(), batches(9)
    analyzer = create(**{name: name == metric for name in METRICS})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    counts = []
    for x, y in given:
        step(model, x, y, optimizer)
        analyzer.on_optimizer_step(model, inputs=(x, y))
        counts.append(living())
    assert max(counts[4:]) <= max(counts[:4])


@pytest.mark.parametrize("handed_over", [False, True])
def test_no_batch_is_held_between_steps(handed_over: bool) -> None:
    model, analyzer = Net(), create()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    analyzer.on_optimizer_step(model)
    for x, y in batches(3):
        x = x.clone()
        step(model, x, y, optimizer)
        assert analyzer.on_optimizer_step(model, inputs=(x, y) if handed_over else None)
        gone = weakref.ref(x)
        del x
        assert gone() is None
