"""The front door to bit widths: documented calls, plain dictionaries, files."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.bits.packed import load_packed
from learnscope.model.bits.sensitivities import SensitivityError
from learnscope.posttrain.bit_widths import BitWidthAnalyzer
from learnscope.posttrain.errors import PosttrainError
from learnscope.posttrain.session import AuditSession
from probes.bits.bit_models import token_logits, trained_gpt2, with_bits


@pytest.fixture(scope="module")
def gpt2() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    return trained_gpt2()


@pytest.fixture(scope="module")
def analyzed(gpt2: tuple[nn.Module, list[dict[str, Tensor]]]) -> tuple[BitWidthAnalyzer, dict[str, Any]]:
    analyzer = BitWidthAnalyzer(AuditSession(gpt2[0]))
    return analyzer, analyzer.analyze(gpt2[1], bits=(8, 4, 2))


def test_everything_is_told_in_plain_dictionaries(analyzed: tuple[BitWidthAnalyzer, dict[str, Any]]) -> None:
    _, found = analyzed
    assert json.loads(json.dumps(found)).keys() == {
        "sensitivity", "configurations", "pareto_frontier", "optimal", "exported",
    }  # fmt: skip
    sensitivity = found["sensitivity"]
    assert list(sensitivity["layers"]) == ["transformer.wte", "transformer.wpe", 0, 1, 2]
    for layer, by_bits in [item for item in sensitivity["layers"].items() if isinstance(item[0], int)]:
        for bits, kl in by_bits.items():
            parts = [
                sensitivity["units"][f"transformer.h.{layer}.{part}"]["bits"][bits]["kl"] for part in ("attn", "mlp")
            ]
            assert kl == pytest.approx(sum(parts))
            assert kl > 0
    uniform = found["configurations"]["uniform_4"]
    # 3072 weights a block; 16·(3 + 1 + 4 + 1) channels of it have a scale of 32 bits
    assert uniform["effective_bits"] == pytest.approx(4 + 32 * 16 * 9 / 3072)
    assert uniform["compression_ratio"] == uniform["original_bytes"] / uniform["packed_bytes"]
    assert uniform["effective_bits"] < uniform["effective_bits_model"] < 32
    assert uniform["perplexity"] == pytest.approx(math.exp(uniform["loss"]))
    original = found["configurations"]["original"]
    assert original["kl"] == 0
    assert math.isnan(original["additivity"])
    assert original["reasons"] == {
        "additivity": "single units were not measured on these examples",
        "kl_p999": "19 positions are too few for the 99.9th percentile: it needs 2,995, so give more data",
    }
    frontier = found["pareto_frontier"]
    assert frontier[-1]["name"] == "original"
    for smaller, larger in itertools.pairwise(frontier):
        assert smaller["packed_bytes"] < larger["packed_bytes"]
        assert smaller["kl"] > larger["kl"]
    optimal = found["optimal"]
    assert optimal["recommended"] == optimal["configurations"][optimal["recommended_name"]]["bits"]
    assert optimal["verdict"] in ("mixed", "uniform")


def test_documented_configurations_by_layer(gpt2: tuple[nn.Module, list[dict[str, Tensor]]]) -> None:
    model, batches = gpt2
    analyzer = BitWidthAnalyzer(AuditSession(model))
    layers = [{"attn_bits": 8, "mlp_bits": 4}, {"attn_bits": 4, "mlp_bits": 8}, {"attn_bits": 8, "mlp_bits": 8}]
    results = analyzer.test_configurations(batches, {"my_config": layers})
    assert list(results) == ["original", "my_config"]
    assert results["my_config"]["bits"]["transformer.h.1.attn"] == 4
    changed = with_bits(model, results["my_config"]["bits"])
    logits, targets, _ = token_logits(changed, batches)
    assert results["my_config"]["accuracy"] == (logits.argmax(1) == targets).mean()
    assert [point["name"] for point in analyzer.pareto_frontier(batches, {"my_config": layers})] == [
        "my_config",
        "original",
    ]


def test_a_saved_file_serves_another_budget_of_the_same_weights(
    gpt2: tuple[nn.Module, list[dict[str, Tensor]]], analyzed: tuple[BitWidthAnalyzer, dict[str, Any]], tmp_path: Path
) -> None:
    model, batches = gpt2
    analyzer, found = analyzed
    analyzer.save_sensitivity(tmp_path / "a.json")
    analyzer.save_sensitivity(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    limit = found["configurations"]["uniform_4"]["packed_bytes"]
    mix = analyzer.optimize_from(tmp_path / "a.json", max_bytes=limit)
    named = {"mix": mix["bits"]}
    assert analyzer.test_configurations(batches, named)["mix"]["packed_bytes"] == mix["packed_bytes"] <= limit
    kept = analyzer.optimize_from(tmp_path / "a.json", max_kl=mix["expected_kl"])
    assert kept["packed_bytes"] <= mix["packed_bytes"]
    tried = BitWidthAnalyzer(AuditSession(model)).find_optimal_configuration(
        batches, max_bytes=limit, sensitivities=str(tmp_path / "a.json"), embeddings=True
    )
    assert tried["sensitivities"] == "file"
    assert tried["configurations"]["optimal"]["bits"] == mix["bits"]
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).add_(1e-3)
    with pytest.raises(SensitivityError, match="of another model"):
        BitWidthAnalyzer(AuditSession(other)).optimize_from(tmp_path / "a.json", max_bytes=limit)
    for options, words in [
        ({"embeddings": True, "granularity": "tensor"}, "was measured with"),
        ({"embeddings": False}, "other units"),
    ]:
        with pytest.raises(SensitivityError, match=words):
            analyzer.find_optimal_configuration(batches, sensitivities=str(tmp_path / "a.json"), **options)


def test_the_recommended_mix_is_exported_as_it_was_measured(
    gpt2: tuple[nn.Module, list[dict[str, Tensor]]], tmp_path: Path
) -> None:
    model, batches = gpt2
    analyzer = BitWidthAnalyzer(AuditSession(model))
    with pytest.raises(PosttrainError, match="find_frontier"):
        analyzer.export(tmp_path / "m.safetensors")
    with pytest.raises(PosttrainError, match="analyze_layer_sensitivity"):
        analyzer.save_sensitivity(tmp_path / "s.json")
    assert list(tmp_path.iterdir()) == []
    best = analyzer.find_optimal_configuration(batches, bits=(8, 3), granularity="group", group_size=8)
    info = analyzer.export(tmp_path / "m.safetensors")
    assert info["tensor_bytes"] == best["configurations"][best["recommended_name"]]["packed_bytes"]
    assert info["file_bytes"] == (tmp_path / "m.safetensors").stat().st_size
    other = copy.deepcopy(model)
    load_packed(tmp_path / "m.safetensors", other)
    logits, _, _ = token_logits(other.eval(), batches)
    own, _, _ = token_logits(model.eval(), batches)
    model.train()
    named = analyzer.test_configurations(batches, {"r": best["recommended"]}, granularity="group", group_size=8)["r"]
    assert named["mse"] == pytest.approx(((logits - own) ** 2).mean(), rel=1e-6)
    assert named["mse"] > 0
