"""Bit widths on what is awkward: numbers against float64, budgets, examples that do not count, and what texts claim."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from learnscope.model.bits.sensitivities import SensitivityError, load
from learnscope.model.weights.content import data_content, model_content, task_content
from learnscope.posttrain import ModelAnalyzer, PosttrainError
from learnscope.posttrain.session import AuditSession
from learnscope.probes.bits.bit_frontier import BitFrontier
from learnscope.task import HuggingFaceTask
from learnscope.tensor.bits.allocation import NoAllocation, allocate
from studentised import by_loop, drawn

MIX = {"transformer.h.0.attn": 8, "transformer.h.0.mlp": 3, "transformer.h.1.attn": 4, "transformer.h.1.mlp": 2}


def gpt2(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    make: Any = GPT2LMHeadModel
    model = make(
        GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    )
    with torch.no_grad():
        for parameter in model.parameters():  # outputs that rounding moves visibly
            parameter.mul_(6 if parameter.ndim > 1 else 1)
    return model.eval()


def batch(rows: int = 6, seed: int = 1) -> dict[str, Tensor]:
    ids = torch.randint(1, 40, (rows, 9), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def analyzer(model: nn.Module, **options: Any) -> ModelAnalyzer:
    return ModelAnalyzer(model, progress=False, name="tiny", **options)


def rounded(weight: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """By the definition, for each output channel (a column of GPT-2's Conv1D)."""
    out = np.empty_like(weight)
    for column in range(weight.shape[1]):
        w = weight[:, column]
        if bits > 3:
            top = 2 ** (bits - 1) - 1
            s = np.abs(w).max() / top
            s = float(np.float32(s))
            out[:, column] = np.clip(np.rint(w / s), -top, top) * s
        else:
            top = 2**bits - 1
            low, high = min(w.min(), 0.0), max(w.max(), 0.0)
            s = float(np.float32((high - low) / top))
            z = np.rint(-low / s)
            out[:, column] = (np.clip(np.rint(w / s) + z, 0, top) - z) * s
    return out


def test_a_mix_on_ragged_data_is_what_float64_says() -> None:
    model = gpt2().double()
    data = batch(8)
    data["attention_mask"][1, 5:] = 0
    data["labels"][1, 5:] = -100
    data["labels"][3, :4] = -100
    found = analyzer(model).bit_width_analyzer
    found.analyze_layer_sensitivity([data], bits=[8, 4, 3, 2])
    told = found.test_configurations([data], {"mine": MIX})["mine"]

    variant = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in variant.named_parameters():
            bits = next((b for unit, b in MIX.items() if name.startswith(f"{unit}.")), None)
            if bits is not None and parameter.ndim == 2:
                parameter.copy_(torch.from_numpy(rounded(parameter.numpy(), bits)))
        inputs = {"input_ids": data["input_ids"], "attention_mask": data["attention_mask"]}
        ours, theirs = (m(**inputs).logits[:, :-1].log_softmax(-1).numpy() for m in (model, variant))
    targets = data["labels"][:, 1:].numpy()
    counts = targets != -100
    kl = (np.exp(ours) * (ours - theirs)).sum(-1)
    rows = np.where(counts, targets, 0)[..., None]
    losses = [-np.take_along_axis(one, rows, -1)[..., 0] for one in (ours, theirs)]
    assert kl[counts].mean() > 1e-3
    assert told["kl"] == pytest.approx(kl[counts].mean(), rel=1e-8)
    assert told["loss"] == pytest.approx(losses[1][counts].mean(), rel=1e-8)
    assert told["loss_change"] == pytest.approx((losses[1] - losses[0])[counts].mean(), rel=1e-7)
    assert told["top1_agree"] == pytest.approx((ours.argmax(-1) == theirs.argmax(-1))[counts].mean())
    assert told["accuracy"] == pytest.approx((theirs.argmax(-1) == targets)[counts].mean())

    change = ((losses[1] - losses[0]) * counts).sum(1)
    low, high = by_loop(change, counts.sum(1).astype(np.float64), drawn(8))
    assert (told["loss_change_low"], told["loss_change_high"]) == pytest.approx((low, high), rel=1e-6)


def test_bytes_and_effective_bits_are_counted_by_hand() -> None:
    model = gpt2()
    told = analyzer(model).bit_width_analyzer.test_configurations([batch(2)], {"mine": MIX})["mine"]
    stored = 4 * sum(p.numel() for p in model.parameters())  # tied once
    packed, bits, entries = stored, 0, 0
    for unit, width in MIX.items():
        shapes = [(16, 48), (16, 16)] if unit.endswith("attn") else [(16, 64), (64, 16)]
        for inputs, outputs in shapes:
            zeros = 0 if width > 3 else width * outputs
            packed += (
                math.ceil(inputs * outputs * width / 8) + 4 * outputs + math.ceil(zeros / 8) - 4 * inputs * outputs
            )
            bits += inputs * outputs * width + 32 * outputs + zeros
            entries += inputs * outputs
    assert (told["original_bytes"], told["packed_bytes"]) == (stored, packed)
    assert told["effective_bits"] == pytest.approx(bits / entries)
    assert told["effective_bits_model"] == pytest.approx(8 * packed / (stored / 4))
    assert told["compression_ratio"] == pytest.approx(stored / packed)


def test_mixes_are_those_of_brute_force_and_never_lose_to_a_uniform_width_in_the_same_bytes(tmp_path: Path) -> None:
    model, data = gpt2(), [batch(12)]
    one = analyzer(model)
    tool = one.bit_width_analyzer
    tool.analyze_layer_sensitivity(data, bits=[8, 4, 3, 2])
    file = tool.save_sensitivity(tmp_path / "sensitivity ü.json")
    known = load(file)
    ways = [[*known.damage[unit], None] for unit in known.damage]
    every = []
    for choice in itertools.product(*ways):
        bits = {unit: b for unit, b in zip(known.damage, choice, strict=True) if b is not None}
        every.append((known.bytes_of(bits), math.fsum(known.damage[u][b] for u, b in bits.items())))
    sizes = {name: c["packed_bytes"] for name, c in tool.test_configurations(data).items()}
    before = model_content(model)
    for budget in (sizes["uniform_2"], (sizes["uniform_4"] + sizes["uniform_2"]) // 2, sizes["uniform_8"] - 100):
        mine = tool.optimize_from(file, max_bytes=budget)
        assert mine["packed_bytes"] <= budget
        assert mine["expected_kl"] == pytest.approx(min(d for size, d in every if size <= budget), rel=1e-9)
        tried = tool.find_optimal_configuration(data, max_bytes=budget)
        best = tried["configurations"][tried["recommended_name"]]
        assert best["packed_bytes"] <= budget
        fitting = [
            c
            for name, c in tried["configurations"].items()
            if name.startswith("uniform") and c["packed_bytes"] <= budget
        ]
        assert fitting
        assert best["kl"] <= min(c["kl"] for c in fitting)
        for finding in one.run.findings():
            if finding.kind == "audit_mixed_wins":  # not over a larger one, which may be better than it
                assert finding.title.removeprefix("Mixed widths are better than ") in {
                    name for name, c in tried["configurations"].items() if c["packed_bytes"] <= budget
                }
    for most in (0.0, 1e-3, 0.1):
        assert tool.optimize_from(file, max_kl=most)["packed_bytes"] == min(s for s, d in every if d <= most)
    assert model_content(model) == before
    other = analyzer(gpt2(5)).bit_width_analyzer
    with pytest.raises(SensitivityError, match="of other weights"):
        other.find_optimal_configuration(data, sensitivities=str(file))


def test_a_mix_is_not_said_to_beat_a_width_that_takes_more_bytes() -> None:
    model, data = gpt2(), [batch(32)]
    one = analyzer(model)
    sizes = {n: c["packed_bytes"] for n, c in one.bit_width_analyzer.test_configurations(data).items()}
    told = one.bit_width_analyzer.find_optimal_configuration(data, max_bytes=sizes["uniform_8"] - 64, bits=[8, 7])
    uniform = {n: c for n, c in told["configurations"].items() if n.startswith("uniform")}
    assert set(uniform) == {"uniform_7", "uniform_8"}
    assert told["verdict"] == "mixed", "8 bits nearly everywhere are better than 7"
    assert uniform["uniform_8"]["kl"] < told["configurations"]["optimal"]["kl"] < uniform["uniform_7"]["kl"]
    [finding] = [f for f in one.run.findings() if f.kind == "audit_mixed_wins"]
    assert finding.title == "Mixed widths are better than uniform_7"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": 1}, "max_bytes=1 cannot be kept: the smallest that these bits allow takes"),
        ({"max_bytes": True}, "a number of bytes above 0"),
        ({"max_bytes": "3"}, "a number of bytes above 0"),
        ({"max_bytes": math.inf}, "a number of bytes above 0"),
        ({"max_kl": math.nan}, "nats from 0 on"),
        ({"max_kl": math.inf}, "nats from 0 on"),
        ({"max_kl": "1"}, "nats from 0 on"),
        ({"activation_bits": 9}, r"activation_bits=9\): 2 to 8"),
        ({"activation_bits": True}, r"activation_bits=True\): 2 to 8"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(options: dict[str, Any], message: str) -> None:
    one = analyzer(gpt2())
    with pytest.raises(ValueError, match=message):
        one.analyze_bit_widths([batch(2)], **options)
    assert one.session.memo.computed == 0
    with pytest.raises(TypeError, match="Did you mean 'max_bytes'"):
        one.analyze_bit_widths([batch(2)], maxbytes=3)


@pytest.mark.parametrize("given", [None, 5, "8", ["x", "y"], [5, 5]])
def test_configurations_of_another_form_are_named(given: Any) -> None:
    with pytest.raises(ValueError, match="configuration 'mine': "):
        analyzer(gpt2()).bit_width_analyzer.test_configurations([batch(2)], {"mine": given})


def test_any_damage_at_all_is_a_budget_too() -> None:
    damage, size = {"a": {8: 0.0, 2: 3.0}, "b": {8: 0.1, 2: 2.0}}, {"a": {8: 8, 2: 2}, "b": {8: 8, 2: 2}}
    found = allocate(damage, size, max_damage=math.inf)
    assert (found.choice, found.bytes, found.damage) == ({"a": 2, "b": 2}, 4, 5.0)


def test_examples_that_do_not_count_take_no_half() -> None:
    data = batch(5)
    data["labels"][[1, 3]] = -100  # without these, 0 and 4 are searched on and 2 is held out
    told = analyzer(gpt2()).bit_width_analyzer.find_optimal_configuration([data], bits=[8, 4])
    assert (told["held_out"], told["examples"], told["positions"]) == (True, 1, 8)
    alone = {key: value[2:3] for key, value in data.items()}
    same = analyzer(gpt2()).bit_width_analyzer.test_configurations([alone], bits=[4])
    assert told["configurations"]["uniform_4"]["kl"] == pytest.approx(same["uniform_4"]["kl"], rel=1e-5)

    data["labels"][1:] = -100
    one = analyzer(gpt2())
    told = one.bit_width_analyzer.find_optimal_configuration([data], bits=[8, 4])
    assert (told["held_out"], told["examples"]) == (False, 1)
    assert not math.isnan(told["configurations"]["uniform_4"]["kl"])
    texts = [finding.detail for finding in one.run.findings() if finding.kind.startswith("audit_")]
    assert any("that the widths were also chosen on" in text for text in texts)
    assert not any("did not see" in text or "not chosen on" in text for text in texts)

    data["labels"][:] = -100
    with pytest.raises(ValueError, match="none of the 5 examples has a position that counts"):
        analyzer(gpt2()).analyze_bit_widths([data])


def test_outputs_that_are_not_finite_are_the_reason_that_is_given() -> None:
    model = gpt2()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e38)
    with pytest.raises(NoAllocation, match="is not finite at any of the bits"):
        analyzer(model).bit_width_analyzer.find_optimal_configuration([batch(2)], bits=[4])


def test_reports_about_numbers_speak_of_squared_errors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    make: Any = BertForSequenceClassification
    config: Any = BertConfig
    model = make(
        config(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                   max_position_embeddings=16, num_labels=1)
    )  # fmt: skip
    data = {**batch(20), "labels": torch.randn(20, generator=torch.Generator().manual_seed(2))}
    one = analyzer(model)
    for probe in (one.bit_width_analyzer.analyze_layer_sensitivity, one.bit_width_analyzer.test_configurations):
        probe([data], bits=[4, 2])
    told = one.bit_width_analyzer.find_optimal_configuration([data], bits=[4, 2], max_bytes=10**9)
    assert told["recommended_name"] == "uniform_16", "in fewer bytes, and not measurably worse than what is stored"
    assert set(told["recommended"].values()) == {16}
    one.generate_comprehensive_report(tmp_path)
    summary = (tmp_path / "summary_report.md").read_text(encoding="utf-8")
    insights = (tmp_path / "insights.md").read_text(encoding="utf-8")
    assert "mean squared error to the model itself" in summary
    assert "KL" not in summary.split("## Figures")[0]
    assert "mean KL" not in insights.split("## Robustness")[0]
    assert "Recommended widths: 16 bits for 4 units" in insights


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.scale = nn.Linear(2, 2), scale

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.scale
        return out


@dataclasses.dataclass
class Record:
    x: Any


class Weighted(HuggingFaceTask):
    def __init__(self, weights: Any) -> None:
        super().__init__()
        self.weights = weights


def test_what_is_remembered_is_of_all_that_was_given() -> None:
    assert model_content(Scaled(1.0)) == model_content(Scaled(1.0)) != model_content(Scaled(2.0))
    other = type("Scaled", (Scaled,), {"forward": lambda self, x: -self.linear(x), "__module__": __name__})
    assert model_content(other(1.0)) != model_content(Scaled(1.0))
    one, two = gpt2(), gpt2()
    two.config._attn_implementation = "eager"
    assert model_content(one) == model_content(gpt2()) != model_content(two)
    many = torch.arange(5000)
    changed = many.clone()
    changed[2500] = -1  # where what is printed has dots
    for make in (lambda x: {"x": x.numpy()}, Record, lambda x: Record(x.numpy()), lambda x: {"x": Record([x])}):
        assert data_content([make(many)]) == data_content([make(many.clone())]) != data_content([make(changed)])
    for wrap in (lambda x: x, lambda x: x.numpy(), lambda x: lambda: x):
        assert task_content(Weighted(wrap(many))) == task_content(Weighted(wrap(many.clone())))
        assert task_content(Weighted(wrap(many))) != task_content(Weighted(wrap(changed)))


def test_a_second_look_and_one_after_an_interruption_only_do_what_is_missing(tmp_path: Path) -> None:
    data = [batch(4)]
    fresh = analyzer(gpt2()).analyze_bit_widths(data, bits=[4, 2])["optimal"]
    half = analyzer(gpt2(), cache=tmp_path / "c ü")
    half.bit_width_analyzer.analyze_layer_sensitivity(data, bits=[4, 2], embeddings=True)
    first = half.session.memo.computed
    whole = analyzer(gpt2(), cache=tmp_path / "c ü")
    whole.bit_width_analyzer.analyze_layer_sensitivity(data, bits=[4, 2], embeddings=True)
    assert (first, whole.session.memo.computed) == (12, 0), "six units at two widths"
    assert whole.bit_width_analyzer.find_frontier(data, bits=[4, 2]) == fresh
    again = analyzer(gpt2(), cache=tmp_path / "c ü")
    assert again.bit_width_analyzer.find_frontier(data, bits=[4, 2]) == fresh
    assert again.session.memo.computed == 0
    looked = AuditSession(gpt2(), cache=tmp_path / "c ü")
    looked.measure(BitFrontier(bits=[4, 2], granularity="tensor"), data)
    assert looked.memo.computed > 0, "another scheme is another question"
    (tmp_path / "file").write_text("x")
    with pytest.raises(PosttrainError, match="is no folder that can be written to"):
        analyzer(gpt2(), cache=tmp_path / "file" / "cache")
