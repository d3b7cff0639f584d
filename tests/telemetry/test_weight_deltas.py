"""Weight deltas against float64 copies of the weights, and the steps between which they lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from telemetry.loops import Net, Weights, batches, distance, lines, telemetry_in, train, wide

CLOSE = 1e-6
FIRST = "nothing to compare with yet"


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def after_change(folder: Path, model: nn.Module, change: Any) -> tuple[dict[str, Any], Weights, Weights]:
    """The second line of two, between which `change` was made; the weights before and after it."""
    with telemetry_in(folder) as telemetry:
        telemetry.on_batch_end(model, None, 1, 0)
        before = wide(model)
        with torch.no_grad():
            change()
        telemetry.on_batch_end(model, None, 2, 0)
    return lines(telemetry)[1], before, wide(model)


def shift(model: nn.Module, size: float) -> None:
    generator = torch.Generator().manual_seed(4)
    for p in model.parameters():
        p.add_((torch.randn(p.shape, generator=generator) * size).to(p.dtype))


def test_deltas_span_from_one_collection_to_the_next(tmp_path: Path) -> None:
    """The first call takes the reference; then every third batch compares with the last that was collected."""
    model = Net()
    kept: dict[int, Weights] = {}
    with telemetry_in(tmp_path / "t", every=3) as telemetry:
        train(model, sgd(model), batches(10), telemetry, after=lambda step: kept.update({step: wide(model)}))
    found = lines(telemetry)
    assert [line["batch_idx"] for line in found] == [3, 6, 9]
    assert [line["weight_delta_since"] for line in found] == [1, 3, 6]
    for line in found:
        new, old = kept[line["global_step"]], kept[line["weight_delta_since"]]
        expected = {"overall": distance(new, old), "group_0": distance(new, old)}
        expected |= {"backbone": distance(new, old, "backbone."), "head": distance(new, old, "head.")}
        assert line["weight_delta"] == pytest.approx(expected, rel=CLOSE)
        assert expected["head"] > 0


def test_the_first_of_all_collections_is_null_and_says_why(tmp_path: Path) -> None:
    model = Net()
    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, sgd(model), batches(2), telemetry)
    first, second = lines(telemetry)
    assert first["weight_delta"] == dict.fromkeys(["overall", "group_0", "backbone", "head"])
    assert [first["status"][f"weight_delta.{key}"] for key in first["weight_delta"]] == [FIRST] * 4
    assert "weight_delta_since" not in first
    assert second["weight_delta_since"] == 1
    assert "status" not in second


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 7)).to(dtype)
    line, before, after = after_change(tmp_path / "t", model, lambda: shift(model, 0.01))
    assert line["weight_delta"]["overall"] == pytest.approx(distance(after, before), rel=CLOSE)
    assert distance(after, before) > 0.01


def test_a_change_far_below_float32_is_seen_in_float64(tmp_path: Path) -> None:
    model = nn.Linear(10, 10).double()
    line, before, after = after_change(tmp_path / "t", model, lambda: model.weight.add_(1e-12))
    assert line["weight_delta"]["overall"] == pytest.approx(distance(after, before), rel=CLOSE)
    assert line["weight_delta"]["overall"] == pytest.approx(1e-11, rel=1e-3)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_magnitudes_whose_squares_float32_cannot_hold(tmp_path: Path, scale: float) -> None:
    model = nn.Linear(40, 40)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    line, before, after = after_change(tmp_path / "t", model, lambda: shift(model, scale))
    assert line["weight_delta"]["overall"] == pytest.approx(distance(after, before), rel=CLOSE)
    assert line["weight_delta"]["overall"] > scale


def test_frozen_parameters_have_moved_by_exactly_nothing(tmp_path: Path) -> None:
    model = Net()
    model.backbone.requires_grad_(False)
    line, before, after = after_change(tmp_path / "t", model, lambda: model.head.weight.add_(0.5))
    assert line["weight_delta"]["backbone"] == 0.0
    assert line["weight_delta"]["head"] == pytest.approx(distance(after, before), rel=CLOSE)
    assert "status" not in line or not [key for key in line["status"] if key.startswith("weight_delta")]


def test_odd_parameters(tmp_path: Path) -> None:
    """Tied, scalar, empty, not contiguous, of integers."""
    model: Any = nn.Module()
    model.first, model.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    model.second.weight = model.first.weight
    model.scalar = nn.Parameter(torch.tensor(2.0))
    model.empty = nn.Parameter(torch.zeros(0, 3))
    model.crossed = nn.Parameter(torch.randn(600, 5).t())
    model.strided = nn.Parameter(torch.randn(64, 4)[::3])
    model.table = nn.Parameter(torch.arange(4), requires_grad=False)
    assert not model.crossed.is_contiguous()

    def change() -> None:
        model.first.weight.add_(0.25)
        model.scalar.add_(3.0)
        model.crossed.mul_(1.5)
        model.strided.sub_(1.0)
        model.table.add_(100)

    line, before, after = after_change(tmp_path / "t", model, change)
    del before["table"], after["table"]
    assert sorted(before) == ["crossed", "empty", "first.weight", "scalar", "strided"], "tied weights count once"
    assert line["weight_delta"] == {"overall": pytest.approx(distance(after, before), rel=CLOSE)}


def test_only_integers(tmp_path: Path) -> None:
    model: Any = nn.Module()
    model.table = nn.Parameter(torch.arange(4), requires_grad=False)
    line, _, _ = after_change(tmp_path / "t", model, lambda: model.table.add_(1))
    assert line["weight_delta"] == {"overall": None}
    assert "floating-point" in line["status"]["weight_delta.overall"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite(tmp_path: Path, bad: float) -> None:
    model = Net()

    def change() -> None:
        model.head.weight[0, 0] = bad
        model.backbone[0].weight.add_(1.0)

    line, before, after = after_change(tmp_path / "t", model, change)
    assert line["weight_delta"]["overall"] is None
    assert line["weight_delta"]["head"] is None
    assert line["status"]["weight_delta.head"] == str(bad)
    assert line["weight_delta"]["backbone"] == pytest.approx(distance(after, before, "backbone."), rel=CLOSE)


def test_a_model_that_is_rebuilt_between_collections(tmp_path: Path) -> None:
    """A wider head: not compared, said so by the parameter's name; the next delta is that of the new model."""
    model = Net()
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.on_batch_end(model, None, 1, 0)
        model.head = nn.Linear(5, 9)
        telemetry.on_batch_end(model, None, 2, 0)
        before = wide(model)
        with torch.no_grad():
            model.head.weight.add_(1.0)
        telemetry.on_batch_end(model, None, 3, 0)
    _, second, third = lines(telemetry)
    assert second["weight_delta"]["overall"] is None
    assert "head.weight" in second["status"]["weight_delta.overall"]
    assert "rebuilt" in second["status"]["weight_delta.overall"]
    assert "weight_delta_since" not in second
    assert third["weight_delta_since"] == 2
    assert third["weight_delta"]["head"] == pytest.approx(distance(wide(model), before), rel=CLOSE)


def test_the_checkpoint_is_a_file_that_torch_reads_safely(tmp_path: Path) -> None:
    model = Net()
    with telemetry_in(tmp_path / "t", every=2) as telemetry:
        train(model, sgd(model), batches(4), telemetry)
        kept = wide(model)
    assert telemetry.checkpoint_file == tmp_path / "t" / "last_checkpoint.pt"
    body = torch.load(telemetry.checkpoint_file, weights_only=True)
    assert body["step"] == 4
    assert body["run"] == json.loads((tmp_path / "t" / "run.json").read_text())["id"]
    assert {name: value.double().numpy().tolist() for name, value in body["model"].items()} == {
        name: value.tolist() for name, value in kept.items()
    }
    assert sorted(path.name for path in (tmp_path / "t").iterdir() if path.name.startswith(".")) == []


def test_a_checkpoint_that_is_deleted_in_mid_training(tmp_path: Path) -> None:
    model = Net()
    kept: dict[int, Weights] = {}

    def after(step: int) -> None:
        kept[step] = wide(model)
        if step == 2:
            telemetry.checkpoint_file.unlink()

    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, sgd(model), batches(4), telemetry, after=after)
    third, fourth = lines(telemetry)[2:]
    assert third["weight_delta"]["overall"] is None
    assert "last_checkpoint.pt" in third["status"]["weight_delta.overall"]
    assert fourth["weight_delta_since"] == 3
    assert fourth["weight_delta"]["overall"] == pytest.approx(distance(kept[4], kept[3]), rel=CLOSE)


def test_no_checkpoint_without_weight_deltas(tmp_path: Path) -> None:
    model = Net()
    with telemetry_in(tmp_path / "t", track_weight_delta=False) as telemetry:
        train(model, sgd(model), batches(3), telemetry)
    assert not telemetry.checkpoint_file.exists()
    assert all("weight_delta" not in line for line in lines(telemetry))
    shutil.rmtree(tmp_path / "t")
    with telemetry_in(tmp_path / "t") as telemetry:
        train(model, sgd(model), batches(3), telemetry)
    assert telemetry.checkpoint_file.exists(), "and with them there is one"
