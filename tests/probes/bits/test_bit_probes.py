"""Bit widths against an own quantiser, full runs and sums in float64."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr, softmax
from torch import Tensor, nn

from learnscope.model.outputs.halves import halves
from learnscope.model.outputs.suffix import Suffix
from learnscope.posttrain.session import AuditSession
from learnscope.probes.bits.bit_optimum import BitOptimum
from learnscope.probes.bits.bit_sensitivity import BitSensitivity
from learnscope.probes.bits.bit_widths import BitWidths
from learnscope.probes.outputs.columns import ZEROS
from learnscope.record import Record
from learnscope.task import HuggingFaceTask
from learnscope.tensor.bits.allocation import NoAllocation
from probes.bits.bit_models import Switchable, texts, token_logits, trained_gpt2, with_bits
from studentised import by_loop, drawn

UNITS = [f"transformer.h.{layer}.{part}" for layer in range(3) for part in ("attn", "mlp")]


def value(record: Record, name: str, scope: str, **labels: Any) -> Any:
    (found,) = [r.value for r in record.rows() if (r.name, r.scope, dict(r.labels)) == (name, scope, labels)]
    return found


def reason(record: Record, name: str, scope: str) -> str | None:
    (found,) = [
        r.status for r in record.rows() if (r.name, r.scope) == (name, scope) and r.labels.get("bits") in (None, 4)
    ]
    return found


def trace(model: nn.Module) -> list[Any]:
    """All that a look must leave alone."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    modules = list(model.modules())
    return [
        {name: (id(t), t.data_ptr(), t.requires_grad) for name, t in tensors.items()},
        [(m.training, "forward" in m.__dict__, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules],
        getattr(getattr(model, "config", None), "use_cache", None),
        torch.get_rng_state().tolist(),
    ]


@pytest.fixture(scope="module")
def gpt2() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    return trained_gpt2()


@pytest.fixture(scope="module")
def looked(gpt2: tuple[nn.Module, list[dict[str, Tensor]]]) -> dict[str, Record]:
    """All three probes at one moment, and nothing left behind by them."""
    model, batches = gpt2
    session = AuditSession(model)
    before, weights = trace(model), {name: t.clone() for name, t in model.state_dict().items()}
    custom = {"mine": [{"attn_bits": 8, "mlp_bits": 2}, {"attn_bits": 4, "mlp_bits": 8}, {"mlp_bits": 4}]}
    with session.sharing(batches):
        found = {
            "custom": session.measure(BitWidths(configurations=custom), batches),
            "sensitivity": session.measure(BitSensitivity(), batches),
            "widths": session.measure(BitWidths(), batches),
            "optimum": session.measure(BitOptimum(), batches),
        }
    assert trace(model) == before
    assert all(torch.equal(t, weights[name]) for name, t in model.state_dict().items())
    return found


def test_a_units_sensitivity_is_the_divergence_of_a_full_run(
    gpt2: tuple[nn.Module, list[dict[str, Tensor]]], looked: dict[str, Record]
) -> None:
    model, batches = gpt2
    record = looked["sensitivity"]
    own, _, _ = token_logits(with_bits(model, {}), batches)
    assert record.notes["positions"] == len(own)
    assert record.notes["rerun"] == "suffix"
    assert record.notes["units"]["transformer.h.1.mlp"] == {"layer": "transformer.h.1", "index": 1, "part": "mlp"}
    for unit, bits in [(UNITS[0], 8), (UNITS[1], 2), (UNITS[2], 4), (UNITS[5], 2)]:
        other, _, _ = token_logits(with_bits(model, {unit: bits}), batches)
        kl = rel_entr(softmax(own, 1), softmax(other, 1)).sum(1)
        # the model runs in float32, whose rounding a divergence of 1e-7 sees
        near = {"rel": 2e-3, "abs": 2e-9}
        assert value(record, "kl", unit, bits=bits) == pytest.approx(kl.mean(), **near)
        assert value(record, "kl_median", unit, bits=bits) == pytest.approx(np.median(kl), **near)
        assert value(record, "kl_p99", unit, bits=bits) == pytest.approx(np.quantile(kl, 0.99), **near)
        assert value(record, "mse", unit, bits=bits) == pytest.approx(((own - other) ** 2).mean(), rel=2e-3)
        assert value(record, "top1_agree", unit, bits=bits) == (own.argmax(1) == other.argmax(1)).mean()
    # 3·16·16 and 16·16 weights, 48 and 16 channels with a float32 scale each, and a zero point at 2 bits
    assert value(record, "weights", UNITS[0]) == 4 * 256
    assert value(record, "original_bytes", UNITS[0]) == 4 * 4 * 256
    assert value(record, "bytes", UNITS[0], bits=4) == 4 * 256 // 2 + 64 * 4
    assert value(record, "bytes", UNITS[0], bits=2) == 4 * 256 // 4 + 64 * 4 + 64 // 4


def test_a_configuration_is_judged_on_the_same_positions_as_the_model(
    gpt2: tuple[nn.Module, list[dict[str, Tensor]]], looked: dict[str, Record]
) -> None:
    model, batches = gpt2
    record = looked["custom"]
    bits = dict(zip(UNITS, (8, 2, 4, 8, None, 4), strict=True))
    assert record.notes["bits"]["mine"] == {unit: width for unit, width in bits.items() if width}
    own, targets, example = token_logits(with_bits(model, {}), batches)
    other, _, _ = token_logits(with_bits(model, record.notes["bits"]["mine"]), batches)
    kl = rel_entr(softmax(own, 1), softmax(other, 1)).sum(1)
    losses = [-log_softmax(logits, 1)[np.arange(len(targets)), targets] for logits in (own, other)]
    right = [logits.argmax(1) == targets for logits in (own, other)]
    expected = {
        "kl": kl.mean(),
        "loss": losses[1].mean(),
        "perplexity": math.exp(losses[1].mean()),
        "loss_change": (losses[1] - losses[0]).mean(),
        "accuracy": right[1].mean(),
        "broke": (right[0] & ~right[1]).mean(),
        "mended": (~right[0] & right[1]).mean(),
    }
    for name, number in expected.items():
        assert value(record, name, "mine") == pytest.approx(number, rel=1e-3, abs=1e-6), name
    per_text = np.array([[kl[example == e].sum(), (losses[1] - losses[0])[example == e].sum()] for e in range(8)])
    lengths = np.array([(example == e).sum() for e in range(8)])
    for column, name in enumerate(("kl", "loss_change")):
        low, high = by_loop(per_text[:, column], lengths, drawn(8))
        near = 5e-3 * (high - low)  # the model runs in float32
        assert value(record, f"{name}_low", "mine") == pytest.approx(low, abs=near)
        assert value(record, f"{name}_high", "mine") == pytest.approx(high, abs=near)
    for name in ("kl", "kl_low", "kl_high", "kl_p99", "mse", "loss_change", "broke"):
        assert value(record, name, "original") == 0  # exactly
    assert value(record, "cosine", "original") == value(record, "compression", "original") == 1
    assert "were not measured" in str(reason(record, "additivity", "mine"))


def test_default_configurations_their_frontier_and_whether_damages_add_up(looked: dict[str, Record]) -> None:
    record, alone = looked["widths"], looked["sensitivity"]
    names = record.tables[0].scopes
    pairs = ("8_4", "4_2")
    assert set(names) == {"original", "uniform_8", "uniform_4", "uniform_2"} | {
        f"{way}_{pair}" for way in ("mixed", "progressive", "attention_focused", "mlp_focused") for pair in pairs
    }
    bits = record.notes["bits"]
    assert list(bits["progressive_8_4"].values()) == [8, 8, 4, 4, 8, 8]
    assert list(bits["attention_focused_4_2"].values()) == [4, 2] * 3
    worst = sorted(UNITS, key=lambda u: value(alone, "kl", u, bits=2) - value(alone, "kl", u, bits=4))[3:]
    assert {unit for unit, width in bits["mixed_4_2"].items() if width == 4} == set(worst)
    assert record.notes["rules"]["mixed_4_2"].startswith("measured")
    assert record.notes["family"]["mlp_focused_8_4"] == "mlp"
    for name in names:
        if name != "original":
            total = math.fsum(value(alone, "kl", unit, bits=b) for unit, b in bits[name].items())
            assert value(record, "additivity", name) == pytest.approx(total / value(record, "kl", name), rel=1e-12)
    assert reason(record, "additivity", "original") == "nothing changed: the joint damage is 0"
    on = [name for name in names if value(record, "on_frontier", name)]
    merged = {each for group in record.notes["merged"].values() for each in group}
    for name in names:
        size, kl = value(record, "packed_bytes", name), value(record, "kl", name)
        beaten = any(value(record, "packed_bytes", o) <= size and value(record, "kl", o) <= kl for o in on if o != name)
        assert (name in on) == (not beaten and name not in merged), name


def test_the_optimum_is_the_best_mix_of_the_half_searched_on_and_tried_on_the_other(
    gpt2: tuple[nn.Module, list[dict[str, Tensor]]], looked: dict[str, Record]
) -> None:
    model, batches = gpt2
    record = looked["optimum"]
    search, held = halves(HuggingFaceTask(), batches)
    alone = AuditSession(model).measure(BitSensitivity(bits=(8, 4, 3, 2)), search)
    widths = (8, 4, 3, 2)
    rest = value(looked["widths"], "original_bytes", "original") - sum(value(alone, "original_bytes", u) for u in UNITS)
    limit = value(record, "budget_bytes", "model")
    assert limit == value(looked["widths"], "packed_bytes", "uniform_4")
    best = math.inf
    for mix in itertools.product(widths, repeat=6):
        if rest + sum(value_of(alone, "bytes", u, b) for u, b in zip(UNITS, mix, strict=True)) <= limit:
            best = min(best, math.fsum(value_of(alone, "kl", u, b) for u, b in zip(UNITS, mix, strict=True)))
    # float32 outputs of other batches: a KL of 3e-5 is the difference of numbers near 1, each rounded by 6e-8
    assert record.notes["expected"] == pytest.approx(best, rel=1e-4)
    chosen = {unit: value(record, "chosen_bits", unit) for unit in UNITS}
    assert chosen == record.notes["bits"]["optimal"]
    assert value(record, "packed_bytes", "optimal") <= limit
    again = AuditSession(model).measure(BitWidths(configurations={"a": chosen, "b": dict.fromkeys(UNITS, 4)}), held)
    assert value(record, "kl", "optimal") == pytest.approx(value(again, "kl", "a"), rel=1e-4)
    assert value(record, "kl", "uniform_4") == pytest.approx(value(again, "kl", "b"), rel=1e-4)
    assert record.notes["held_out"] is True
    assert record.notes["examples"] == 4
    progressive = next(name for name in record.tables[0].scopes if name.startswith("progressive"))
    assert value(record, "packed_bytes", progressive) >= value(record, "packed_bytes", "optimal")
    name = record.notes["recommended_name"]
    assert (record.notes["verdict"] == "mixed") == (name == "optimal") == bool(value(record, "mixed_wins", "model"))
    assert value(record, "kl", name) <= value(record, "kl", "uniform_4")
    assert record.notes["recommended"] == record.notes["bits"][name]


def value_of(record: Record, name: str, unit: str, bits: int, _known: dict[Any, Any] = {}) -> Any:  # noqa: B006 (a cache)
    key = (id(record), name, unit, bits)
    if key not in _known:
        _known[key] = value(record, name, unit, bits=bits)
    return _known[key]


def test_budgets_are_kept_or_refused_and_uniform_may_win(gpt2: tuple[nn.Module, list[dict[str, Tensor]]]) -> None:
    model, batches = gpt2
    session = AuditSession(model)
    with session.sharing(batches):
        # with one width to choose from in its own bytes, the mix is the uniform one
        even = session.measure(BitOptimum(bits=(4,)), batches)
        assert even.notes["bits"]["optimal"] == even.notes["bits"]["uniform_4"] == even.notes["recommended"]
        assert (even.notes["verdict"], even.notes["recommended_name"]) == ("uniform", "uniform_4")
        assert value(even, "mixed_wins", "model") == 0
        half = even.notes["expected"] / 2
        loose = session.measure(BitOptimum(bits=(8, 4), max_kl=half), batches)
        assert 0 < loose.notes["expected"] <= half
        assert value(loose, "budget_kl", "model") == half
        around = [name for name in loose.tables[0].scopes if name.startswith("uniform")]
        sizes = sorted(value(loose, "packed_bytes", name) for name in around)
        assert len(sizes) == 2
        assert sizes[0] <= value(loose, "packed_bytes", "optimal") <= sizes[1]
        none = session.measure(BitOptimum(bits=(8, 4), max_kl=0.0), batches)
        assert none.notes["bits"]["optimal"] == {}
        assert [value(none, "chosen_bits", unit) for unit in UNITS] == [32] * 6
        with pytest.raises(NoAllocation, match=f"smallest mix takes {value(even, 'packed_bytes', 'uniform_4')} bytes"):
            session.measure(BitOptimum(bits=(4,), max_bytes=5000), batches)
    single = AuditSession(model).measure(BitOptimum(bits=(8, 2)), [texts([8], 8)])
    assert single.notes["held_out"] is False
    assert "one document" in single.notes["held_out_reason"]
    assert str(reason(single, "kl_low", "optimal")).startswith("1 example is too few")


def test_what_is_remembered_is_not_run_again(gpt2: tuple[nn.Module, list[dict[str, Tensor]]], tmp_path: Path) -> None:
    model, batches = gpt2
    probes = [BitSensitivity(bits=(4,)), BitWidths(bits=(4,)), BitOptimum(bits=(4, 2))]
    first = [[*map(vars_of, AuditSession(model, cache=tmp_path).measure(p, batches).rows())] for p in probes]
    runs: list[int] = []
    handle = model.register_forward_pre_hook(lambda *_: runs.append(1))
    try:
        again = [[*map(vars_of, AuditSession(model, cache=tmp_path).measure(p, batches).rows())] for p in probes]
        assert not runs
        AuditSession(model, cache=tmp_path).measure(BitSensitivity(bits=(4,), granularity="tensor"), batches)
        assert runs
    finally:
        handle.remove()
    assert again == first


def vars_of(row: Any) -> tuple[Any, ...]:
    return row.name, row.scope, row.kind, tuple(row.labels.items()), row.value, row.status


def test_a_classifier_and_a_regression_without_blocks() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    x = torch.randn(24, 6)
    classes = [(x[:12], torch.arange(12) % 3), (x[12:], torch.arange(12) % 3)]
    session = AuditSession(net)
    with session.sharing(classes):
        alone = session.measure(BitSensitivity(bits=(4,)), classes)
        found = session.measure(BitWidths(bits=(8, 4)), classes)
    assert (alone.tables[0].scopes, alone.notes["rerun"]) == (["0", "2", "4"], "suffix")
    with torch.no_grad():
        own = net.double()(x.double()).numpy()
        net.float()
        other = with_bits(net, {"2": 4})(x.double()).numpy()
    kl = rel_entr(softmax(own, 1), softmax(other, 1)).sum(1).mean()
    assert value(alone, "kl", "2", bits=4) == pytest.approx(kl, rel=1e-3)
    assert reason(found, "perplexity", "uniform_4") == "the model does not predict tokens"
    assert "attention" in found.notes["left_out"]["attention_focused_8_4"]
    assert found.notes["bits"]["progressive_8_4"] == {"0": 8, "2": 4, "4": 8}

    numbers = [(x[:12], torch.randn(12, 3)), (x[12:], torch.randn(12, 3))]
    session = AuditSession(net)
    with session.sharing(numbers):
        alone = session.measure(BitSensitivity(bits=(8, 4)), numbers)
        found = session.measure(BitWidths(bits=(8, 4)), numbers)
        best = session.measure(BitOptimum(bits=(8, 4, 2)), numbers)
    assert alone.notes["judged_by"] == "mse"
    assert value(alone, "mse", "2", bits=4) == pytest.approx(((own - other) ** 2).mean(), rel=1e-4)
    assert value(alone, "kl", "2", bits=4) is None
    assert str(reason(alone, "kl", "2")).startswith("float targets")
    assert reason(found, "accuracy", "uniform_4") == "there are no classes to be right of"
    total = sum(value(alone, "mse", unit, bits=4) for unit in ("0", "2", "4"))
    assert value(found, "additivity", "uniform_4") == pytest.approx(total / value(found, "mse", "uniform_4"))
    assert [value(found, "on_frontier", n) for n in ("original", "uniform_8")] == [1, 1]
    assert best.notes["expected"] > 0
    name = best.notes["recommended_name"]
    assert value(best, "mse", name) <= value(best, "mse", "uniform_4")


def test_a_model_that_sets_its_own_precision_is_asked_to_and_gets_its_own_back() -> None:
    model = Switchable()
    batches = [texts([9, 4], 9), texts([7, 8, 6], 8)]
    task = HuggingFaceTask(shift=True)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    session = AuditSession(model, task=task)
    with session.sharing(batches):
        alone = session.measure(BitSensitivity(bits=(8, 4)), batches)
        found = session.measure(BitWidths(bits=(8, 4)), batches)
        best = session.measure(BitOptimum(bits=(8, 4), max_kl=1e-3), batches)
    assert alone.notes["rerun"] == "full"
    assert "sets its own precision" in alone.notes["rerun_reason"]
    assert model.told == {}
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    other = Switchable()
    other.set_precision(1, mlp_bits=4)
    own, _, _ = token_logits(model.eval(), batches)
    changed, _, _ = token_logits(other.eval(), batches)
    kl = rel_entr(softmax(own, 1), softmax(changed, 1)).sum(1).mean()
    assert value(alone, "kl", "inner.transformer.h.1.mlp", bits=4) == pytest.approx(kl, rel=1e-3)
    assert value(found, "kl", "uniform_4") > value(found, "kl", "uniform_8") > 0
    assert {name for name in best.tables[0].scopes if name.startswith("uniform")} <= {"uniform_8", "uniform_4"}


def test_a_llama_gives_the_same_numbers_whether_or_not_its_first_blocks_run_again(monkeypatch: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=40, pad_token_id=0)).bfloat16()
    batches = [texts([9, 4], 9), texts([7, 8, 6], 8)]
    probe = BitSensitivity(bits=(4,), activation_bits=8, embeddings=True, granularity="group", group_size=8)
    monkeypatch.setattr(Suffix, "only_block", lambda self, names: None)  # one by one: larger batches round differently
    short = AuditSession(model).measure(probe, batches)
    begun: list[int] = []
    own = Suffix.begins_at
    monkeypatch.setattr(Suffix, "begins_at", lambda self, names: begun.append(own(self, names)) or 0)
    full = AuditSession(model).measure(probe, batches)
    assert [*map(vars_of, short.rows())] == [*map(vars_of, full.rows())]
    assert short.notes["rerun"] == "suffix"
    # embedding, six units in three blocks, head
    assert sorted(begun) == [0, 0, 0, 0, 1, 1, 2, 2]
    assert model.config.use_cache
    assert value(short, "kl", "model.layers.2.mlp", bits=4) > 0


def test_options_and_configurations_that_mean_nothing_are_refused(
    gpt2: tuple[nn.Module, list[dict[str, Tensor]]],
) -> None:
    model, batches = gpt2
    wrong: list[tuple[Any, str]] = [
        (lambda: BitSensitivity(bits=(1,)), "2 to 8, 16"),
        (lambda: BitWidths(bits=()), "one or more of 2 to 8 and 16"),
        (lambda: BitSensitivity(bits=(32,)), "as stored is always compared with"),
        (lambda: BitSensitivity(examples=0), "examples=0"),
        (lambda: BitWidths(granularity="row"), "granularity='row'"),
        (lambda: BitWidths(configurations={"original": {}}), "another name"),
        (lambda: BitWidths(configurations={}), "one or more configurations"),
        (lambda: BitOptimum(max_bytes=10, max_kl=1.0), "not both"),
        (lambda: BitOptimum(max_bytes=0), "above 0"),
        (lambda: BitOptimum(max_kl=-1.0), "from 0 on"),
    ]
    for make, words in wrong:
        with pytest.raises(ValueError, match=words):
            make()
    for given, words in [
        ([{"attn_bits": 8}], "configuration 'c': bits for 1 layers were given, the model has 3"),
        ({"transformer.h.0.atn": 8}, "configuration 'c': 'transformer.h.0.atn' is not a unit"),
    ]:
        with pytest.raises(ValueError, match=words):
            AuditSession(model).measure(BitWidths(configurations={"c": given}), batches)


def test_outputs_that_are_all_0_have_no_cosine_and_say_so() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    batches = [(torch.cat([torch.randn(11, 6), torch.zeros(1, 6)]), torch.arange(12) % 3)]
    model[0].bias.data.zero_()  # zeros in, zeros out
    session = AuditSession(model)
    sensitivity, widths = (session.measure(probe, batches) for probe in (BitSensitivity(), BitWidths()))
    assert reason(sensitivity, "cosine", "0") == ZEROS
    assert {row.status for row in widths.rows() if row.name == "cosine"} == {ZEROS}
    assert all(row.value is not None for row in widths.rows() if row.name == "mse")
