"""The performance analyzer's dictionaries: what the records say, under the documented keys."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from learnscope.posttrain.performance import PerformanceAnalyzer
from learnscope.posttrain.session import AuditSession
from probes.reference import mlp, tiny_gpt2, tokens

CLASSES = [(torch.randn(4, 3), torch.tensor([0, 1, 1, 0])), (torch.randn(2, 3), torch.tensor([1, 0]))]


def analyzer(model: nn.Module) -> PerformanceAnalyzer:
    return PerformanceAnalyzer(AuditSession(model))


def missing(found: Any, where: str = "") -> list[str]:
    """Keys of the numbers that are NaN."""
    if isinstance(found, dict):
        return [key for name, value in found.items() for key in missing(value, name)]
    return [where] if isinstance(found, float) and math.isnan(found) else []


@pytest.fixture(scope="module")
def analysis() -> dict[str, Any]:
    model = mlp(3, 5, 2)
    session = AuditSession(model)
    found = PerformanceAnalyzer(session).analyze(CLASSES, seconds=0.001)
    assert {record.probe for record in session.run.records()} == {
        "Performance", "InferenceSpeed", "MemoryUse", "LayerTimes",
    }  # fmt: skip
    with torch.no_grad():
        logits = torch.cat([model(x) for x, _ in CLASSES])
    targets = torch.cat([y for _, y in CLASSES])
    assert found["basic_metrics"]["loss"] == pytest.approx(
        nn.functional.cross_entropy(logits, targets).item(), rel=1e-5
    )
    assert found["basic_metrics"]["accuracy"] == (logits.argmax(1) == targets).double().mean().item()
    return found


def test_all_four_parts_are_plain_json_and_say_why_a_number_is_missing(analysis: dict[str, Any]) -> None:
    assert list(analysis) == ["basic_metrics", "speed", "memory", "layers"]
    assert json.loads(json.dumps(analysis)).keys() == analysis.keys()
    basic = analysis["basic_metrics"]
    assert basic["examples"] == basic["positions"] == 6
    assert list(basic["top_k_accuracy"]) == ["1", "5", "10"]
    assert basic["top_k_accuracy"]["1"] == basic["accuracy"]
    assert {"perplexity", "top_k_accuracy[5]"} <= basic["reasons"].keys()
    memory = analysis["memory"]
    assert memory["model_bytes"] == 4 * (3 * 5 + 5 + 5 * 2 + 2)
    assert sum(part["bytes"] for part in memory["parts"].values()) == memory["model_bytes"]
    assert [(one["batch"], one["cache_bytes"]) for one in memory["running"]] == [(1, 0), (4, 0)]
    assert "process" not in memory
    layers = analysis["layers"]
    assert sum(module["self_seconds"] for module in layers["modules"].values()) == pytest.approx(
        layers["total_seconds"]
    )
    for part in analysis.values():
        flat = {key: value for key, value in part.items() if key not in ("reasons", "sweep", "prefill", "decode")}
        for name in missing(flat):
            assert name in part["reasons"] or any(f"[{name}]" in reason for reason in part["reasons"]), name


def test_speed_has_the_documented_keys(analysis: dict[str, Any]) -> None:
    speed = analysis["speed"]
    assert speed["n"] >= 3
    assert speed["mean_latency"] == pytest.approx(1 / speed["batches_per_second"])
    assert speed["examples_per_second"] == pytest.approx(4 / speed["mean_latency"])
    assert math.isnan(speed["tokens_per_second"])
    assert f"{speed['tokens_per_second']:.2f}" == "nan"
    assert speed["reasons"]["tokens_per_second"] == "the inputs are no token ids"
    assert speed["prefill"] is speed["decode"] is None
    assert "causal language model" in speed["reasons"]["prefill"]
    assert [(one["batch"], one["main"]) for one in speed["sweep"]] == [(4, True), (1, False), (8, False)]
    for key, needed in (("p95_latency", 59), ("p99_latency", 299)):
        assert math.isnan(speed[key]) == (speed["n"] < needed) == (key in speed["reasons"])


def test_a_language_model_has_tokens_prefill_and_decode() -> None:
    speed = analyzer(tiny_gpt2()).benchmark_inference_speed(
        [{"input_ids": tokens(2, 8)}], batches=(1,), seconds=1e-4, repeats=3
    )
    assert speed["tokens_per_second"] == pytest.approx(16 / speed["mean_latency"])
    assert (speed["prefill"]["batch"], speed["prefill"]["length"]) == (1, 8)
    assert speed["decode"]["tokens_per_second"] == pytest.approx(1 / speed["decode"]["latency_mean"])
    assert len(speed["sweep"]) == 6
    assert math.isnan(speed["p95_latency"])
    assert "3 passes are too few" in speed["reasons"]["p95_latency"]


def test_what_is_remembered_is_not_measured_again(tmp_path: Any) -> None:
    model = mlp(3, 5, 2)
    first = PerformanceAnalyzer(AuditSession(model, cache=tmp_path)).analyze(CLASSES, seconds=0.001)
    second = AuditSession(model, cache=tmp_path)
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    again = PerformanceAnalyzer(second).analyze(CLASSES, seconds=0.001)
    assert json.dumps(again) == json.dumps(first)
    assert second.memo.computed == 0
    assert not calls, "the model was not even run"


def test_unknown_options_are_refused_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match="batches"):
        analyzer(mlp(3, 2)).benchmark_inference_speed(CLASSES, batch=(1,))
