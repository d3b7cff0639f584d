"""Which settings are timed, on what inputs, with how many tokens and operations; no absolute times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.cost import calls
from learnscope.model.cost.calls import counted_flops, decode, prefill, real_tokens, resized, token_length
from learnscope.posttrain.session import AuditSession
from learnscope.probes.cost.inference_speed import InferenceSpeed
from learnscope.quantities.cost import InferenceSpeed as Q
from learnscope.reading.cells import value
from learnscope.record import Record
from learnscope.task import HuggingFaceTask, TupleTask
from probes.reference import mlp, tiny_gpt2, tokens

QUICK: dict[str, Any] = {"seconds": 1e-4, "repeats": 3}


def settings(record: Record) -> list[tuple[Any, ...]]:
    found = [tuple(row.labels.values()) for row in record.rows() if row.name == "latency_mean"]
    assert len(found) == len(set(found))
    return found


def why(record: Record, name: str, **labels: Any) -> str | None:
    [row] = [r for r in record.rows() if r.name == name and all(r.labels[k] == v for k, v in labels.items())]
    assert row.value is None
    return row.status


def padded(*, left: bool) -> dict[str, Tensor]:
    ids, mask = tokens(2, 6), torch.ones(2, 6, dtype=torch.int64)
    mask[0, slice(0, 4) if left else slice(2, 6)] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


def test_batches_of_another_size() -> None:
    task, batch = HuggingFaceTask(), padded(left=False)
    assert (token_length(batch), real_tokens(batch)) == (6, 8)
    small = resized(task, batch, 1, 4)
    assert small["input_ids"].tolist() == batch["input_ids"][:1, :4].tolist()
    assert small["labels"].shape == (1, 4)
    assert real_tokens(small) == 2
    large = resized(task, batch, 3, 8)
    assert large["input_ids"][2].tolist() == [*batch["input_ids"][0].tolist(), *batch["input_ids"][0, :2].tolist()]
    assert real_tokens(large) == 4 + 8 + 4
    left = resized(task, padded(left=True), 2, 3)
    assert real_tokens(left) == 2 + 3, "cut where the padding is"
    assert batch["input_ids"].shape == (2, 6), "the data's own is not touched"
    images = (torch.zeros(4, 3, 5, 5), torch.zeros(4, dtype=torch.long))
    assert (token_length(images), real_tokens(images)) == (0, None)
    assert resized(TupleTask(), images, 6, 0)[0].shape == (6, 3, 5, 5)


@pytest.fixture(scope="module")
def gpt2_record() -> Record:
    model = tiny_gpt2()
    model.train()
    record = AuditSession(model).measure(
        InferenceSpeed(batches=(1, 3), lengths=(4, 16, 17), **QUICK), [padded(left=True), padded(left=False)]
    )
    assert model.training
    return record


def test_a_causal_language_model_is_timed_in_three_phases(gpt2_record: Record) -> None:
    pairs = [(2, 6), (1, 4), (1, 16), (1, 17), (3, 4), (3, 16), (3, 17)]
    expected = [(phase, *pair, phase == "forward" and pair == (2, 6)) for phase in ("forward", "prefill", "decode")
                for pair in pairs]  # fmt: skip
    assert settings(gpt2_record) == expected
    assert [row.labels for row in gpt2_record.rows() if row.name == "latency_n" and row.labels["main"]] == [
        {"phase": "forward", "batch": 2, "length": 6, "main": True}
    ]
    for phase, length, needed in (("forward", 17, 17), ("prefill", 17, 17), ("decode", 16, 17)):
        assert why(gpt2_record, "latency_mean", phase=phase, batch=1, length=length) == (
            f"{needed} tokens are more than the model's 16 positions"
        )
    assert "too few" in str(why(gpt2_record, "latency_p95", phase="forward", batch=1, length=16))
    assert value(gpt2_record, Q.latency_n, phase="decode", batch=1, length=4) == 3
    assert gpt2_record.notes["threads"] == torch.get_num_threads()


def test_rates_are_real_tokens_and_operations_over_the_mean(gpt2_record: Record) -> None:
    for labels, examples, real in (
        ({"phase": "forward", "batch": 2, "length": 6}, 2, 2 + 6),
        ({"phase": "forward", "batch": 1, "length": 16}, 1, 2 + 2 + 0),
        ({"phase": "decode", "batch": 3, "length": 4}, 3, 3),
    ):
        mean = float(value(gpt2_record, Q.latency_mean, **labels) or 0)
        assert value(gpt2_record, Q.batches_per_second, **labels) == pytest.approx(1 / mean)
        assert value(gpt2_record, Q.examples_per_second, **labels) == pytest.approx(examples / mean)
        assert value(gpt2_record, Q.tokens_per_second, **labels) == pytest.approx(real / mean)
        flops = value(gpt2_record, Q.flops, **labels)
        assert flops is not None
        assert value(gpt2_record, Q.flops_per_second, **labels) == pytest.approx(flops / mean)


def gpt2_flops(rows: int, queries: int, keys: int, logits: int, *, layers: int, width: int, vocabulary: int) -> int:
    """Two operations a weight and token in the blocks' matrices (12 d²) and in the head, and attention's QKᵀ and AV."""
    return rows * (
        2 * queries * layers * 12 * width**2 + 4 * layers * queries * keys * width + 2 * logits * width * vocabulary
    )


def test_operations_of_gpt2_are_those_of_the_formula(gpt2_record: Record) -> None:
    sizes = {"layers": 2, "width": 16, "vocabulary": 40}
    flops = {tuple(row.labels.values())[:3]: row.value for row in gpt2_record.rows() if row.name == "flops"}
    assert flops["forward", 2, 6] == gpt2_flops(2, 6, 6, 6, **sizes)
    assert flops["forward", 3, 16] == gpt2_flops(3, 16, 16, 16, **sizes)
    assert flops["prefill", 3, 16] == gpt2_flops(3, 16, 16, 1, **sizes), "logits of the last position only"
    assert flops["decode", 1, 4] == gpt2_flops(1, 1, 5, 1, **sizes), "one query over the cache and itself"


def test_operations_that_cannot_be_counted_have_a_reason() -> None:
    assert counted_flops(lambda: torch.ones(3) + 1) == "the counter supports none of the model's operations"

    def fails() -> None:
        raise RuntimeError("no such\nthing")

    assert counted_flops(fails) == "the operations could not be counted: RuntimeError: no such"


def test_prefill_and_decode_have_a_grid_of_their_own_and_the_data_two_passes() -> None:
    model = tiny_gpt2(n_positions=140)
    record = AuditSession(model).measure(InferenceSpeed(**QUICK), [{"input_ids": tokens(2, 6)}])
    pairs = [(1, 32), (1, 128), (4, 32), (4, 128), (16, 32), (16, 128)]
    assert settings(record) == [
        ("forward", 2, 6, True), ("forward", 1, 6, False),
        *((phase, *pair, False) for phase in ("prefill", "decode") for pair in pairs),
    ]  # fmt: skip
    for n, length in pairs:
        seconds = value(record, Q.latency_mean, phase="decode", batch=n, length=length)
        assert seconds is not None
        assert value(record, Q.tokens_per_second, phase="decode", batch=n, length=length) == pytest.approx(n / seconds)
    sizes = {"layers": 2, "width": 16, "vocabulary": 40}
    assert value(record, Q.flops, phase="decode", batch=4, length=32) == gpt2_flops(4, 1, 33, 1, **sizes)
    assert value(record, Q.flops, phase="prefill", batch=4, length=32) == gpt2_flops(4, 32, 32, 1, **sizes)


def test_no_pass_is_run_to_find_out_how_the_grid_is_called() -> None:
    """Logits of all positions of 16 x 128 tokens of a large vocabulary would take more memory than the model."""
    model = tiny_gpt2(n_positions=140)
    largest = []
    model.register_forward_hook(lambda _module, _args, out: largest.append(out.logits.shape[:2].numel()))
    AuditSession(model).measure(InferenceSpeed(**QUICK), [{"input_ids": tokens(2, 6)}])
    assert max(largest) == 16, "one position of each row, also where the cache to decode with is made"


def test_decoding_is_that_of_the_whole_text_and_the_cache_does_not_grow() -> None:
    torch.manual_seed(0)
    model = tiny_gpt2().eval()
    ids = tokens(2, 7)
    with torch.no_grad():
        whole = model(input_ids=torch.cat([ids, ids[:, -1:]], 1)).logits
        assert torch.allclose(prefill(model, ids, None)().logits, whole[:, 6:7], atol=1e-5)
        run, forget = decode(model, ids, torch.ones_like(ids))
        for _ in range(3):
            out = run()
            assert out.past_key_values.get_seq_length() == 8
            assert torch.allclose(out.logits, whole[:, 7:], atol=1e-5)
            forget()
            assert out.past_key_values.get_seq_length() == 7


def test_inputs_without_length_and_batches_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))]
    monkeypatch.setattr(calls, "LARGEST_OUTPUT", 100)
    record = AuditSession(mlp(3, 5, 2)).measure(InferenceSpeed(batches=(1, 40), **QUICK), data)
    assert settings(record) == [("forward", 4, 0, True), ("forward", 1, 0, False), ("forward", 40, 0, False)]
    assert why(record, "tokens_per_second", batch=4) == "the inputs are no token ids"
    assert value(record, Q.flops, batch=4) == 2 * 4 * (3 * 5 + 5 * 2)
    assert str(why(record, "latency_mean", batch=40)).startswith("its outputs alone would take")
    record = AuditSession(mlp(3, 5, 2)).measure(InferenceSpeed(batches=(1,), lengths=(8,), **QUICK), data)
    assert "no length" in str(why(record, "latency_mean", batch=1))


def test_data_that_fills_all_positions_leaves_room_to_decode() -> None:
    record = AuditSession(tiny_gpt2()).measure(InferenceSpeed(batches=(), **QUICK), [{"input_ids": tokens(1, 16)}])
    assert settings(record) == [("forward", 1, 16, True), ("prefill", 1, 16, False), ("decode", 1, 15, False)]
    assert value(record, Q.latency_n, phase="decode") == 3


def test_a_size_that_the_model_refuses_is_left_out_with_its_words() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(2, 3)

    data = [(torch.randn(2, 3), torch.zeros(2, dtype=torch.long))]
    record = AuditSession(nn.Sequential(nn.Linear(3, 3), Fixed())).measure(InferenceSpeed(batches=(1,), **QUICK), data)
    assert str(why(record, "latency_mean", batch=1)).startswith("RuntimeError: shape '[2, 3]' is invalid")
    assert value(record, Q.latency_n, batch=2) == 3


def test_options_are_refused_early() -> None:
    for name, bad in (("batches", (0,)), ("lengths", (1.5,)), ("repeats", 0), ("threads", True), ("seconds", 0)):
        with pytest.raises(ValueError, match=name):
            InferenceSpeed(**{name: bad})
