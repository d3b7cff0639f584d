"""The documented helpers: they exist, they are called, and what an override returns is what is recorded."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from learnscope.core.moment import NotAvailable
from learnscope.core.probe import ProbeWarning
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from telemetry.loops import Net, batches, lines, train

PARAMETERS = {
    "_compute_gradient_norm": ["model"],
    "_compute_weight_delta": ["model"],
    "_get_learning_rates": ["optimizer"],
    "_eval_holdout": ["model", "device"],
    "_compute_batch_stats": ["batch"],
}
SECTIONS = dict(
    zip(PARAMETERS, ["gradient_norm", "weight_delta", "learning_rates", "holdout_logits", "batch_stats"], strict=True)
)


def run(kind: type[TrainingTelemetry], folder: Path, count: int = 3, **options: Any) -> list[dict[str, Any]]:
    """Lines of a short training, without what no two runs share."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with kind(TelemetryConfig(collect_every_n=1, output_dir=folder), **options) as telemetry:
        telemetry.set_holdout_data(batches(2))
        train(model, optimizer, batches(count), telemetry)
    found = lines(telemetry)
    for line in found:
        del line["timestamp"]
    return found


def test_they_have_the_documented_parameters() -> None:
    for name, expected in PARAMETERS.items():
        assert list(inspect.signature(getattr(TrainingTelemetry, name)).parameters) == ["self", *expected]


def calling(name: str, seen: list[Any]) -> type[TrainingTelemetry]:
    def helper(self: Any, *arguments: Any) -> Any:
        seen.append(arguments)
        return getattr(super(kind, self), name)(*arguments)

    kind: type[TrainingTelemetry] = type("Kind", (TrainingTelemetry,), {name: helper})
    return kind


@pytest.mark.parametrize("name", PARAMETERS)
def test_super_gives_what_would_have_been_recorded(name: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    found = run(calling(name, seen), tmp_path / "own", strict=True)
    assert found == run(TrainingTelemetry, tmp_path / "plain", strict=True)
    assert [list(line) for line in found] == [list(line) for line in run(TrainingTelemetry, tmp_path / "again")]
    assert len(seen) == 3
    kinds = {
        "model": Net, "optimizer": torch.optim.SGD, "device": (str, type(None), torch.device), "batch": (tuple, list),
    }  # fmt: skip
    for arguments in seen:
        assert all(isinstance(a, kinds[p]) for a, p in zip(arguments, PARAMETERS[name], strict=True))


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_an_override_returns_is_recorded(name: str, tmp_path: Path) -> None:
    kind: type[TrainingTelemetry] = type(
        "Kind", (TrainingTelemetry,), {name: lambda _self, *given: {"value": len(given), "not_finite": float("nan")}}
    )
    found = run(kind, tmp_path / "own", strict=True)
    plain = run(TrainingTelemetry, tmp_path / "plain", strict=True)
    section = SECTIONS[name]
    for line, other in zip(found, plain, strict=True):
        assert line[section] == {"value": len(PARAMETERS[name]), "not_finite": None}
        assert "not finite" in line["status"][section]
        assert {key: line[key] for key in SECTIONS.values() if key != section} == {
            key: other[key] for key in SECTIONS.values() if key != section
        }


class Richer(TrainingTelemetry):
    """Adds to what is measured, as the document's reader would."""

    def _compute_gradient_norm(self, model: nn.Module) -> dict[str, Any]:
        norms = super()._compute_gradient_norm(model)
        return {**norms, "largest": max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)}

    def _compute_batch_stats(self, batch: Any) -> dict[str, Any]:
        return {**super()._compute_batch_stats(batch), "mean": float(batch[0].mean())}


def test_an_override_may_add_to_what_is_measured(tmp_path: Path) -> None:
    found = run(Richer, tmp_path / "own", strict=True)
    plain = run(TrainingTelemetry, tmp_path / "plain", strict=True)
    for number, (line, other) in enumerate(zip(found, plain, strict=True)):
        assert line["gradient_norm"].pop("largest") > 0
        assert line["batch_stats"].pop("mean") == pytest.approx(float(batches(3)[number][0].mean()))
        assert line == other


def test_one_that_fails_costs_its_section_only(tmp_path: Path) -> None:
    class Failing(TrainingTelemetry):
        def _eval_holdout(self, model: nn.Module, device: Any) -> dict[str, Any]:
            raise OSError("the holdout is gone")

    with pytest.warns(ProbeWarning, match="_eval_holdout failed; training goes on") as said:
        found = run(Failing, tmp_path / "t")
    assert len([one for one in said if "holdout is gone" in str(one.message)]) == 1
    assert [line["holdout_logits"] for line in found] == [None] * 3
    assert found[0]["status"]["holdout_logits"] == "OSError: the holdout is gone"
    assert found[0]["gradient_norm"]["overall"] > 0
    with pytest.raises(OSError, match="the holdout is gone"):
        run(Failing, tmp_path / "strict", strict=True)


def test_one_that_evaluates_in_its_own_way_leaves_no_trace(tmp_path: Path) -> None:
    """Holdout data that nothing here could read, through a model with dropout and batch norm."""

    class Own(TrainingTelemetry):
        def _eval_holdout(self, model: nn.Module, device: Any) -> dict[str, Any]:
            return {"mean": float(model(self.holdout_data.inputs).detach().mean())}

    class Holdout:
        inputs = batches(1)[0][0]

    trained = []
    for kind in (Own, None):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        telemetry = None if kind is None else kind(TelemetryConfig(collect_every_n=1, output_dir=tmp_path / "t"))
        if telemetry is not None:
            telemetry.holdout_data = Holdout()
        train(model, optimizer, batches(3), telemetry)
        trained.append([*model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*trained, strict=True))
    found = [json.loads(line) for line in (tmp_path / "t" / "telemetry.jsonl").read_text().splitlines()]
    assert [set(line["holdout_logits"]) for line in found] == [{"mean"}] * 3


def test_outside_a_collection_they_say_who_calls_them(tmp_path: Path) -> None:
    with TrainingTelemetry(TelemetryConfig(output_dir=tmp_path / "t")) as telemetry:
        with pytest.raises(NotAvailable, match="on_batch_end asks for it when one is due"):
            telemetry._compute_gradient_norm(Net())
