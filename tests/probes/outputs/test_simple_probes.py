"""Learning rates, logged numbers and batches, as they were in the step they are recorded for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from probes.reference import at_scope, mlp, rows, values


def one_step(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model(torch.randn(4, 4)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


# ---- LearningRate


@pytest.mark.parametrize("scheduler", ["cosine", "lambda", "one cycle"])
def test_the_rate_is_the_one_used_in_the_step(scheduler: str) -> None:
    """SGD on a gradient of ones moves the weight by exactly the rate: what was used is read off the weights."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule: Any = {
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
        "lambda": lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.7**step),
        "one cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=1.0, total_steps=10, cycle_momentum=False
        ),
    }[scheduler]()
    used = []
    with ls.watch(model, optimizer, probes=[ls.LearningRate(every=1)], strict=True) as w:
        for _ in range(8):
            before = model.weight.item()
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step()
            used.append(before - model.weight.item())
            schedule.step()
    frame = rows(w.run, "LearningRate", "learning_rate", "group")
    assert list(frame.step) == list(range(1, 9))
    assert list(frame.value) == pytest.approx(used, rel=1e-9)
    assert len(set(used)) > 4


def test_groups_are_called_by_their_names() -> None:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "name": "body", "lr": 1e-3, "weight_decay": 0.1},
            {"params": [model[2].weight], "lr": torch.tensor(2e-3), "weight_decay": 0.0},
            {"params": [model[2].bias], "name": "body", "lr": 3e-3},
        ]
    )
    with ls.watch(model, optimizer, probes=[ls.LearningRate(every=1)], strict=True) as w:
        one_step(model, optimizer)
    rates = at_scope(w.run, "LearningRate", "learning_rate", "group")
    assert rates == pytest.approx({"body": 1e-3, "group_1": 2e-3, "body_2": 3e-3}, rel=1e-6)
    decays = at_scope(w.run, "LearningRate", "weight_decay", "group")
    assert decays == pytest.approx({"body": 0.1, "group_1": 0.0, "body_2": 0.01})


def test_several_optimizers_and_one_without_weight_decay() -> None:
    model = mlp(4, 5, 2)
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Rprop(model[2].parameters(), lr=0.02)
    third = torch.optim.AdamW([nn.Parameter(torch.zeros(2))], lr=0.3)  # nothing of this model
    with ls.watch(model, [first, second, third], probes=[ls.LearningRate(every=1)], strict=True) as w:
        one_step(model, first, second, third)
    assert at_scope(w.run, "LearningRate", "learning_rate", "group") == {
        "group_0": 0.1,
        "group_1": 0.02,
        "group_2": 0.3,
    }
    decay = rows(w.run, "LearningRate", "weight_decay", "group").set_index("scope")
    assert decay.value["group_2"] == 0.01
    assert np.isnan(decay.value["group_1"])
    assert decay.status["group_1"] == "not measured"


# ---- Loss


def test_logged_numbers_of_every_kind() -> None:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Loss()], strict=True) as w:
        for step in range(3):
            one_step(model, optimizer)
            w.log(
                tensor=torch.tensor([[1.5 + step]], requires_grad=True), half=torch.tensor(0.5, dtype=torch.bfloat16),
                whole=step, numpy=np.float32(0.25), flag=step == 1, missing=float("nan"), endless=-float("inf"),
            )  # fmt: skip
    assert values(w.run, "Loss", "tensor") == [1.5, 2.5, 3.5]
    assert values(w.run, "Loss", "half") == [0.5] * 3
    assert values(w.run, "Loss", "whole") == [0, 1, 2]
    assert values(w.run, "Loss", "numpy") == [0.25] * 3
    assert values(w.run, "Loss", "flag") == [0, 1, 0]
    assert list(rows(w.run, "Loss", "missing").status) == ["nan"] * 3
    assert list(rows(w.run, "Loss", "endless").status) == ["-inf"] * 3


def test_several_numbers_of_one_step_of_mixed_kinds() -> None:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = [torch.tensor(0.1, dtype=torch.float64), 0.7, torch.tensor([0.4]), np.float64(1e6)]
    with ls.watch(model, optimizer, probes=[ls.Loss()], strict=True) as w:
        one_step(model, optimizer)
        for part in parts:
            w.log(loss=part)
    exact = np.array([0.1, 0.7, np.float64(np.float32(0.4)), 1e6])
    assert values(w.run, "Loss", "loss") == [pytest.approx(exact.mean(), rel=1e-12)]
    assert values(w.run, "Loss", "loss_std") == [pytest.approx(exact.std(ddof=1), rel=1e-12)]


def test_a_tensor_of_several_numbers_is_refused() -> None:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[ls.Loss()], strict=True) as w:
        one_step(model, optimizer)
        w.log(loss=torch.zeros(3))
        model(torch.randn(4, 4)).square().mean().backward()
        with pytest.raises(ValueError, match=r"w\.log\(loss=…\) was given a tensor of shape \(3,\); log one number"):
            w.log(other=1.0)  # a value of the next step: the last one's are complete
        w.log(other=1.0)
        optimizer.step()


# ---- BatchStats


def batch_run(batch: Any, task: ls.Task | None = None, **options: Any) -> ls.Run:
    model = mlp(4, 5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = ls.BatchStats(every=1, **options)
    with ls.watch(model, optimizer, probes=[probe], task=task, strict=True) as w:
        one_step(model, optimizer)
        w.batch(batch)
    return w.run


def test_classes_of_a_tuple_batch() -> None:
    y = torch.tensor([0, 2, 2, 2, 7, 0])
    run = batch_run((torch.randn(6, 4), y))
    assert values(run, "BatchStats", "batch_size") == [6]
    assert values(run, "BatchStats", "targets") == [6]
    assert at_scope(run, "BatchStats", "share", "class") == pytest.approx({"0": 2 / 6, "2": 3 / 6, "7": 1 / 6})
    few = batch_run((torch.randn(6, 4), y), max_classes=2)
    assert values(few, "BatchStats", "share", "class") == [], "too many classes to list"


def test_tokens_that_do_not_count() -> None:
    labels = torch.tensor([[5, 5, -100, -100], [9, -100, -100, -100]])
    run = batch_run({"input_ids": torch.ones(2, 4, dtype=torch.int64), "labels": labels})
    assert values(run, "BatchStats", "batch_size") == [2]
    assert values(run, "BatchStats", "targets") == [3]
    assert at_scope(run, "BatchStats", "share", "class") == pytest.approx({"5": 2 / 3, "9": 1 / 3})
    nothing = batch_run({"input_ids": torch.ones(1, 2, dtype=torch.int64), "labels": torch.full((1, 2), -100)})
    assert values(nothing, "BatchStats", "targets") == [0]


def test_pairs_and_floats_and_no_targets() -> None:
    pair = batch_run({"img1": torch.randn(4, 2), "img2": torch.randn(4, 2), "winner": torch.tensor([1.0, 0, 1, 1])})
    assert at_scope(pair, "BatchStats", "share", "class") == {"0": 0.25, "1": 0.75}
    y = torch.tensor([1.0, 2.5, -4.0], dtype=torch.bfloat16)
    floats = batch_run((torch.randn(3, 4), y))
    assert values(floats, "BatchStats", "target_mean") == [pytest.approx(np.mean([1.0, 2.5, -4.0]), rel=1e-12)]
    assert values(floats, "BatchStats", "target_std") == [pytest.approx(np.std([1.0, 2.5, -4.0], ddof=1), rel=1e-12)]
    assert values(floats, "BatchStats", "targets") == [3]
    bare = batch_run(torch.randn(5, 4))
    assert values(bare, "BatchStats", "batch_size") == [5]
    assert values(bare, "BatchStats", "targets") == []
