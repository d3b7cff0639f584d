"""Metrics of one's own: a method of a subclass, in every line, under the guard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from learnscope.core.probe import ProbeWarning
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from telemetry.loops import Net, batches, lines, train


def run(kind: type[TrainingTelemetry], folder: Path, count: int = 2, **options: Any) -> list[dict[str, Any]]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with kind(TelemetryConfig(collect_every_n=1, output_dir=folder), **options) as telemetry:
        train(model, optimizer, batches(count), telemetry)
    return lines(telemetry)


class Documented(TrainingTelemetry):
    def _compute_my_metric(self, model: nn.Module) -> dict[str, Any]:
        """Compute my custom metric."""
        return {"value": 42}


def test_the_documents_metric_lands_in_the_line(tmp_path: Path) -> None:
    found = run(Documented, tmp_path / "t", strict=True)
    assert [line["my_metric"] for line in found] == [{"value": 42}] * 2


class Several(TrainingTelemetry):
    def _compute_norm(self, model: Any) -> Any:
        return model.head.weight.norm()

    def _compute_odd(self, model: nn.Module) -> dict[Any, Any]:
        numbers = {"array": np.arange(3, dtype=np.int16), "scalar": np.float32(0.5), "tensor": torch.ones(2, 1)}
        return numbers | {
            "bad": [1.0, float("nan"), float("-inf")],
            "text": "ü",
            7: None,
            "path": Path("x"),
            "on": True,
        }

    @staticmethod
    def _compute_constant(model: nn.Module) -> int:
        return 5

    def helper_compute_(self) -> None:
        raise AssertionError("not a metric")


def test_whatever_they_return_becomes_strict_json(tmp_path: Path) -> None:
    line = run(Several, tmp_path / "t", 1, strict=True)[0]
    assert isinstance(line["norm"], float)
    assert line["norm"] > 0
    assert line["constant"] == 5
    assert line["odd"] == {
        "array": [0, 1, 2], "scalar": 0.5, "tensor": [[1.0], [1.0]], "bad": [1.0, None, None], "text": "ü", "7": None,
        "path": "x", "on": True,
    }  # fmt: skip
    assert line["status"]["odd"] == "null where it is not finite: -inf, nan"
    assert list(line)[-4:] == ["constant", "norm", "odd", "status"]


class Failing(TrainingTelemetry):
    calls = 0

    def _compute_broken(self, model: nn.Module) -> float:
        Failing.calls += 1
        raise ZeroDivisionError("no pairs yet")

    def _compute_sound(self, model: nn.Module) -> int:
        return 1


def test_one_that_fails_is_null_with_its_reason_and_warned_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "calls", 0)
    with pytest.warns(ProbeWarning, match="_compute_broken failed; training goes on") as caught:
        found = run(Failing, tmp_path / "t", 3)
    assert len(caught) == 1
    assert "no pairs yet" in str(caught[0].message)
    for line in found:
        assert line["broken"] is None
        assert line["status"]["broken"] == "ZeroDivisionError: no pairs yet"
        assert line["sound"] == 1
        assert line["gradient_norm"]["overall"] > 0
    assert Failing.calls == 3


def test_strict_telemetry_passes_it_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(Failing, tmp_path / "t", strict=True)


class Writing(TrainingTelemetry):
    def _compute_writing(self, model: Any) -> float:
        with torch.no_grad():
            model.head.weight.mul_(1.0)
        return 1.0


def test_one_that_writes_weights_in_place_is_told_so(tmp_path: Path) -> None:
    """That cannot be undone, so it must not go unnoticed; `test_harmless` has what is undone."""
    with pytest.warns(ProbeWarning, match=r"changed in place.*weight head\.weight"):
        found = run(Writing, tmp_path / "t")
    assert [line["writing"] for line in found] == [None, None]
    assert "GuardError" in found[0]["status"]["writing"]


class WithProperties(TrainingTelemetry):
    """Properties are the user's business: none is read to find the metrics."""

    @property
    def fragile(self) -> int:
        raise RuntimeError("was read")

    def _compute_fine(self, model: nn.Module) -> int:
        return 3


def test_properties_are_left_alone(tmp_path: Path) -> None:
    assert [line["fine"] for line in run(WithProperties, tmp_path / "t", strict=True)] == [3, 3]


def test_the_manifest_need_not_be_there(tmp_path: Path) -> None:
    model = Net()
    with Documented(TelemetryConfig(collect_every_n=1, output_dir=tmp_path / "t")) as telemetry:
        telemetry.on_batch_end(model, None, 1, 0)
        manifest = (tmp_path / "t" / "run.json").read_bytes()
        (tmp_path / "t" / "run.json").unlink()
        telemetry.on_batch_end(model, None, 2, 0)
        (tmp_path / "t" / "run.json").write_bytes(manifest)
    assert [line["my_metric"] for line in lines(telemetry)] == [{"value": 42}] * 2
