"""What is claimed of bit widths, on a GPT-2 that was trained here on the built-in text."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.packed import load_packed
from learnscope.model.cost.timing import take_pairs
from learnscope.posttrain import ModelAnalyzer
from learnscope.tensor.bits.quantize import Scheme
from posttrain.trained import trained_gpt2

BITS = (8, 4, 3, 2)


@pytest.fixture(scope="module")
def analyzer() -> ModelAnalyzer:
    return ModelAnalyzer(trained_gpt2(), progress=False)


@pytest.fixture(scope="module")
def data(analyzer: ModelAnalyzer) -> Any:
    return analyzer.data(split="validation", examples=24, length=64)


@pytest.fixture(scope="module")
def found(analyzer: ModelAnalyzer, data: Any) -> dict[str, Any]:
    return analyzer.analyze_bit_widths(data, bits=BITS)


def kl_in_float64(analyzer: ModelAnalyzer, other: Any, data: Any) -> float:
    """Mean of KL(model ‖ other) over predicted tokens, by NumPy."""
    each = []
    for batch in data:
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            p, q = (model.eval()(**given).logits[:, :-1].double().numpy() for model in (analyzer.model, other))
        p, q = (x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)
                for x in (p, q))  # fmt: skip
        counts = (batch["labels"][:, 1:] != -100).numpy()
        each.append((np.exp(p) * (p - q)).sum(-1)[counts])
    return float(np.concatenate(each).mean())


def test_fewer_bits_are_further_from_the_model(found: dict[str, Any]) -> None:
    tried = found["configurations"]
    kl = [tried[f"uniform_{bits}"]["kl"] for bits in BITS]
    assert 0 == tried["original"]["kl"] < kl[0] < kl[1] < kl[2] < kl[3]
    sizes = [tried[f"uniform_{bits}"]["packed_bytes"] for bits in BITS]
    assert all(larger > smaller for larger, smaller in itertools.pairwise(sizes))


def test_what_is_recommended_is_no_worse_on_held_out_data_than_uniform_in_the_same_bytes(found: dict[str, Any]) -> None:
    best = found["optimal"]
    assert best["held_out"] is True
    tried = best["configurations"]
    chosen = tried[best["recommended_name"]]
    rivals = [one for name, one in tried.items() if name.startswith("uniform")]
    equal = [one for one in rivals if one["packed_bytes"] <= chosen["packed_bytes"]]
    assert rivals
    assert all(chosen["kl"] <= one["kl"] for one in equal)
    widths = set(chosen["bits"].values())
    assert (len(widths) > 1) == (best["verdict"] == "mixed")
    assert best["recommended_name"].startswith(best["verdict"])


@pytest.mark.parametrize("budget", [0.2, 0.3, 0.5])
def test_other_budgets_too(analyzer: ModelAnalyzer, data: Any, found: dict[str, Any], budget: float) -> None:
    small, large = (found["configurations"][name]["packed_bytes"] for name in ("uniform_2", "uniform_8"))
    within = int(small + budget * (large - small))
    best = analyzer.bit_width_analyzer.find_frontier(data, max_bytes=within, bits=BITS)
    chosen = best["configurations"][best["recommended_name"]]
    assert chosen["packed_bytes"] <= within
    rivals = {name: one for name, one in best["configurations"].items() if one["packed_bytes"] <= within}
    assert any(name.startswith("uniform") for name in rivals)
    for name, one in rivals.items():
        assert chosen["kl"] <= one["kl"], name


def test_the_packed_file_has_the_ledgers_bytes_and_gives_the_measured_outputs(
    analyzer: ModelAnalyzer, data: Any, found: dict[str, Any], tmp_path: Path
) -> None:
    best = analyzer.bit_width_analyzer.find_optimal_configuration(data, bits=BITS)
    told = analyzer.bit_width_analyzer.export(tmp_path / "packed.safetensors")
    stored = sum(tensor.nbytes for tensor in load_file(tmp_path / "packed.safetensors").values())
    counted = ledger(analyzer.model, best["recommended"], Scheme()).packed_bytes
    assert stored == told["tensor_bytes"] == counted
    assert counted == best["configurations"][best["recommended_name"]]["packed_bytes"]
    other = ModelAnalyzer(trained_gpt2(), progress=False).model
    load_packed(tmp_path / "packed.safetensors", other)
    every = kl_in_float64(analyzer, other, data)
    mine = {"mine": dict(best["recommended"])}
    one = analyzer.bit_width_analyzer.test_configurations(data, mine)["mine"]
    assert every == pytest.approx(one["kl"], rel=1e-4)
    assert math.isclose(one["compression_ratio"], one["original_bytes"] / stored)


def test_a_new_budget_is_solved_from_the_file_alone(
    analyzer: ModelAnalyzer, data: Any, found: dict[str, Any], tmp_path: Path
) -> None:
    first = analyzer.bit_width_analyzer.save_sensitivity(tmp_path / "a.json")
    second = analyzer.bit_width_analyzer.save_sensitivity(tmp_path / "b.json")
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(first.read_text())
    within = found["configurations"]["uniform_4"]["packed_bytes"]
    solved = analyzer.bit_width_analyzer.optimize_from(first, max_bytes=within)
    assert solved["packed_bytes"] <= within
    assert solved["expected_kl"] <= sum(by_bits[4] for by_bits in found["sensitivity"]["layers"].values()) + 1e-12


def test_copies_that_are_really_packed_are_timed_and_say_so(found: dict[str, Any], analyzer: ModelAnalyzer) -> None:
    copies = found["exported"]
    assert list(copies) == ["original", "int8", "int4"]
    assert copies["original"]["speed_up"] == 1.0
    assert copies["original"]["kl"] == 0.0
    assert copies["original"]["weight_bytes"] == found["configurations"]["original"]["packed_bytes"]
    for name, bits in (("int8", 8), ("int4", 4)):
        one = copies[name]
        assert one["real"] is True
        assert one["latency_p50"] > 0
        assert one["latency_n"] >= 3
        few = one["latency_n"] <= 5  # which have no interval
        assert few or one["speed_up_low"] <= one["speed_up"] <= one["speed_up_high"]
        assert one["weight_bytes"] < copies["original"]["weight_bytes"]
        # int8 holds what the ledger counts but for its zero points, a byte a channel
        assert one["weight_bytes"] >= found["configurations"][f"uniform_{bits}"]["packed_bytes"]
        assert 0 < one["kl"] < 0.1
    copy = analyzer.bit_width_analyzer.export_torchao(8)
    assert copy is not analyzer.model
    assert not any(type(module).__name__ == "Conv1D" for module in copy.modules())


def test_a_speed_up_is_the_median_ratio_of_passes_that_were_timed_side_by_side(
    analyzer: ModelAnalyzer, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[dict[str, Any]] = []

    def kept(*given: Any, **options: Any) -> dict[str, Any]:
        timed.append(take_pairs(*given, **options))
        return timed[-1]

    monkeypatch.setattr("learnscope.model.cost.exported.take_pairs", kept)
    copies = analyzer.bit_width_analyzer.measure_exported_speed(data, seconds=0.1)
    passes, decoded = timed
    for name in ("int8", "int4"):
        for prefix, pairs in (("", passes[name]), ("decode_", decoded[name])):
            assert len(pairs.base) == len(pairs.seconds) == copies[name][f"{prefix}latency_n"]
            ratios = np.array(pairs.base) / np.array(pairs.seconds)
            assert copies[name][f"{prefix}speed_up"] == pytest.approx(np.median(ratios), rel=1e-12)
            assert copies[name][f"{prefix}latency_p50"] == pytest.approx(np.median(pairs.seconds), rel=1e-12)
