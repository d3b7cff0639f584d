"""Gradient norms against float64 sums of squares, for every way in which a group comes about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from telemetry.loops import (
    Net,
    batches,
    gradient_norm,
    lines,
    norm,
    pretend_gradients,
    telemetry_in,
    train,
)

CLOSE = 1e-6


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def collect(folder: Path, model: nn.Module, optimizer: Any, **options: Any) -> dict[str, Any]:
    """One collection on a model as it stands."""
    with telemetry_in(folder, **options) as telemetry:
        telemetry.on_batch_end(model, optimizer, 1, 0)
    return lines(telemetry)[0]


def test_a_training_run_has_the_norms_of_every_group(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(
        [{"params": model.backbone.parameters(), "lr": 1e-5}, {"params": model.head.parameters(), "lr": 1e-4}]
    )
    expected: list[dict[str, float]] = []

    def note(_: int) -> None:
        backbone, head = gradient_norm(model, "backbone."), gradient_norm(model, "head.")
        expected.append({"overall": gradient_norm(model), "group_0": backbone, "group_1": head})
        expected[-1] |= {"backbone": backbone, "head": head}

    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, optimizer, batches(5), telemetry, after=note)
    found = [line["gradient_norm"] for line in lines(telemetry)]
    assert found == [pytest.approx(numbers, rel=CLOSE) for numbers in expected]
    assert list(found[0]) == ["overall", "group_0", "group_1", "backbone", "head"]
    assert min(expected[0].values()) > 0


def test_groups_that_the_optimizer_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    pretend_gradients(model)
    groups: list[dict[str, Any]] = [
        {"params": model[1].parameters(), "name": "last"},
        {"params": [model[0].weight], "name": "first"},
    ]
    found = collect(tmp_path / "t", model, torch.optim.SGD(groups, lr=0.1))["gradient_norm"]
    last, first = gradient_norm(model, "1."), gradient_norm(model, "0.weight")
    expected = {"overall": gradient_norm(model), "group_0": last, "last": last, "group_1": first, "first": first}
    assert found == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize(
    ("pattern", "members"),
    [
        ("norm", ["stem.norm."]),
        ("stem.0", ["stem.0."]),
        (["stem.0", "classifier"], ["stem.0.", "classifier."]),
        ("stem.*", ["stem."]),
        ("*.bias", ["stem.0.bias", "stem.norm.bias", "classifier.bias", "norm_free.bias"]),
        ("*.?.weight", ["stem.0.weight"]),
        (["*.norm.*", "norm_free"], ["stem.norm.", "norm_free."]),
        ("weight", ["stem.0.weight", "stem.norm.weight", "classifier.weight", "norm_free.weight"]),
    ],
)
def test_patterns_of_the_user(tmp_path: Path, pattern: str | list[str], members: list[str]) -> None:
    model: Any = nn.Module()
    model.stem = nn.Sequential()
    model.stem.add_module("0", nn.Linear(5, 4))
    model.stem.add_module("norm", nn.LayerNorm(4))
    model.classifier = nn.Linear(4, 3)
    model.norm_free = nn.Linear(4, 3)
    pretend_gradients(model)
    found = collect(tmp_path / "t", model, None, groups={"mine": pattern, "all": "*"})["gradient_norm"]
    assert found["mine"] == pytest.approx(gradient_norm(model, *members), rel=CLOSE)
    assert found["all"] == found["overall"] == pytest.approx(gradient_norm(model), rel=CLOSE)
    assert list(found) == ["overall", "mine", "all"], "the usual groups are not added to the user's own"


@pytest.mark.parametrize("wrap", ["data parallel", "compiled", "both"])
def test_wrappers_do_not_hide_the_groups(tmp_path: Path, wrap: str) -> None:
    inner = Net()
    pretend_gradients(inner)
    model: nn.Module = inner
    if wrap != "compiled":
        model = nn.DataParallel(model)
    if wrap != "data parallel":
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    found = collect(tmp_path / "t", model, sgd(model), groups={"head": "head", "first": "backbone.0"})["gradient_norm"]
    assert found["head"] == pytest.approx(gradient_norm(inner, "head."), rel=CLOSE)
    assert found["first"] == pytest.approx(gradient_norm(inner, "backbone.0."), rel=CLOSE)
    assert found["overall"] == pytest.approx(gradient_norm(inner), rel=CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20)).to(dtype)
    pretend_gradients(model)
    found = collect(tmp_path / "t", model, sgd(model))["gradient_norm"]
    assert found["overall"] == pytest.approx(gradient_norm(model), rel=CLOSE)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_magnitudes_whose_squares_float32_cannot_hold(tmp_path: Path, scale: float) -> None:
    model = nn.Linear(50, 50)
    pretend_gradients(model, scale=scale)
    found = collect(tmp_path / "t", model, sgd(model))["gradient_norm"]
    assert found["overall"] == pytest.approx(gradient_norm(model), rel=CLOSE)
    assert found["overall"] > 10 * scale


def test_odd_parameters(tmp_path: Path) -> None:
    """Tied, empty, scalar, not contiguous, of integers, with a sparse gradient: each counts once, or not at all."""
    model: Any = nn.Module()
    model.embedding = nn.Embedding(7, 4, sparse=True)
    model.first = nn.Linear(4, 7, bias=False)
    model.second = nn.Linear(4, 7, bias=False)
    model.second.weight = model.first.weight
    model.scalar = nn.Parameter(torch.tensor(2.0))
    model.empty = nn.Parameter(torch.zeros(0, 3))
    model.crossed = nn.Parameter(torch.randn(6, 5).t())
    model.table = nn.Parameter(torch.arange(4), requires_grad=False)
    tokens = torch.tensor([1, 1, 3])
    loss = model.second(model.first(model.embedding(tokens)).relu() @ model.first.weight).sum() * model.scalar
    (loss + (model.crossed.square() * 3).sum() + model.empty.sum()).backward()
    assert model.embedding.weight.grad.is_sparse
    grads = [
        model.embedding.weight.grad.to_dense(),
        model.first.weight.grad,
        model.scalar.grad,
        model.crossed.grad,
    ]
    found = collect(tmp_path / "t", model, None)["gradient_norm"]
    assert found == {"overall": pytest.approx(norm(g.double().numpy() for g in grads), rel=CLOSE)}


class TestAbsence:
    def test_cleared_gradients_are_null_and_the_reason_names_the_cure(self, tmp_path: Path) -> None:
        model = Net()
        optimizer = sgd(model)
        with telemetry_in(tmp_path / "t") as telemetry:
            model(batches(1)[0][0]).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            telemetry.on_batch_end(model, optimizer, 1, 0)
        (line,) = lines(telemetry)
        assert line["gradient_norm"] == dict.fromkeys(["overall", "group_0", "backbone", "head"])
        for key in line["gradient_norm"]:
            assert "call on_batch_end before zero_grad()" in line["status"][f"gradient_norm.{key}"]

    def test_gradients_set_to_zero_are_zero(self, tmp_path: Path) -> None:
        model = Net()
        model(batches(1)[0][0]).sum().backward()
        optimizer = sgd(model)
        optimizer.zero_grad(set_to_none=False)
        line = collect(tmp_path / "t", model, optimizer)
        assert line["gradient_norm"] == dict.fromkeys(["overall", "group_0", "backbone", "head"], 0.0)
        assert not [key for key in line["status"] if key.startswith("gradient_norm")]

    def test_a_frozen_backbone_has_no_gradient_rather_than_a_zero_one(self, tmp_path: Path) -> None:
        model = Net()
        model.backbone.requires_grad_(False)
        model(batches(1)[0][0]).square().sum().backward()
        line = collect(tmp_path / "t", model, sgd(model))
        found = line["gradient_norm"]
        assert found["backbone"] is None
        assert "frozen" in line["status"]["gradient_norm.backbone"]
        assert found["head"] == found["overall"] == pytest.approx(gradient_norm(model, "head."), rel=CLOSE)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_gradients_that_are_not_finite(self, tmp_path: Path, bad: float) -> None:
        model = Net()
        pretend_gradients(model)
        model.head.weight.grad[0, 0] = bad  # type: ignore[index]
        line = collect(tmp_path / "t", model, sgd(model))
        assert line["gradient_norm"]["overall"] is None
        assert line["gradient_norm"]["head"] is None
        assert line["gradient_norm"]["backbone"] == pytest.approx(gradient_norm(model, "backbone."), rel=CLOSE)
        assert line["status"]["gradient_norm.head"] == str(bad)


def test_clipped_gradients_are_those_that_the_optimizer_was_given(tmp_path: Path) -> None:
    model = Net()
    model(batches(1)[0][0]).square().sum().mul(100).backward()
    before = gradient_norm(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    found = collect(tmp_path / "t", model, sgd(model))["gradient_norm"]
    assert before > 2
    assert found["overall"] == pytest.approx(1.0, rel=1e-4)


def test_an_optimizer_in_place_of_another_with_groups_of_equal_sizes(tmp_path: Path) -> None:
    """As after unfreezing, or with two that take turns: what a group holds is read anew."""
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    pretend_gradients(model)
    with telemetry_in(tmp_path / "t") as telemetry:
        for number, order in enumerate(["ab", "ba"], 1):
            groups = [{"params": model[key].parameters()} for key in order]
            telemetry.on_batch_end(model, torch.optim.SGD(groups, lr=0.1), number, 0)
    a, b = gradient_norm(model, "a."), gradient_norm(model, "b.")
    found = [[line["gradient_norm"][f"group_{n}"] for n in (0, 1)] for line in lines(telemetry)]
    assert found == [pytest.approx([a, b], rel=CLOSE), pytest.approx([b, a], rel=CLOSE)]
    assert abs(a - b) > 0.01
