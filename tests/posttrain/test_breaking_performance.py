"""Performance where it is easily measured wrongly or dearly: passes run twice, slow passes, operations of others."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.model.cost.memory_child import _hide_unused
from learnscope.model.cost.speed import measured_speed
from learnscope.model.cost.timing import Timed, take_turns
from learnscope.posttrain.performance import PerformanceAnalyzer
from learnscope.posttrain.session import AuditSession
from learnscope.probes.cost.inference_speed import InferenceSpeed
from learnscope.probes.outputs.performance import Performance
from learnscope.task import TupleTask, task_for

WIDTH, LAYERS, VOCABULARY = 16, 2, 40


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_layer": LAYERS, "n_embd": WIDTH, "n_head": 2, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


def tokens(rows: int = 3, length: int = 8) -> Tensor:
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def test_every_setting_is_prepared_by_one_pass_and_its_operations_are_counted_in_it() -> None:
    model, ids = gpt2(), tokens()
    passes = {"long": 0, "one token": 0}

    def count(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        passes["long" if kwargs["input_ids"].shape[1] > 1 else "one token"] += 1

    model.register_forward_pre_hook(count, with_kwargs=True)
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    found = measured_speed(model, task_for(batch, model), batch, batches=(3,), lengths=(), seconds=1e-9, repeats=1)
    assert [(row["phase"], row["latency_n"]) for row in found["settings"]] == [
        ("forward", 3), ("prefill", 3), ("decode", 3),
    ]  # fmt: skip
    # forward: one to find and count it, a warm-up, three timed; prefill the same; the cache that decoding begins with
    assert passes == {"long": 5 + 5 + 1, "one token": 1 + 1 + 1 + 3}
    rows, length = ids.shape
    block = 2 * 12 * WIDTH * WIDTH
    for row, asked, seen, written in zip(
        found["settings"], (length, length, 1), (length, length, length + 1), (length, 1, 1), strict=True
    ):
        attention = 4 * asked * seen * WIDTH
        head = 2 * WIDTH * VOCABULARY * written
        assert row["flops"] == rows * (LAYERS * (asked * block + attention) + head)
        real = rows if row["phase"] == "decode" else int(mask.sum())
        assert row["tokens_per_second"] * row["latency_mean"] == pytest.approx(real)


def test_products_of_the_task_are_not_the_models() -> None:
    class Own(TupleTask):
        def logits(self, model: nn.Module, batch: Any) -> Tensor:
            found: Tensor = model(batch[0]) @ torch.ones(6, 50)
            return found

    model, batch = nn.Linear(4, 6), (torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
    found = measured_speed(model, Own(), batch, batches=(), lengths=(), seconds=1e-9, repeats=1)
    assert found["settings"][0]["flops"] == 2 * 8 * 4 * 6


def test_a_pass_too_slow_to_be_seen_to_settle_is_warmed_up_once() -> None:
    now = [0.0]

    def slow() -> None:
        now[0] += 1.0

    found = take_turns({"slow": Timed(slow, 4.0), "fast": Timed(slow, 100.0)}, repeats=3, clock=lambda: now[0])
    assert (found["slow"].warmup, found["slow"].warm, len(found["slow"].seconds)) == (1, False, 3)
    assert (found["fast"].warmup, found["fast"].warm) == (6, True)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [(InferenceSpeed, {"batches": 8}), (InferenceSpeed, {"lengths": 5}), (InferenceSpeed, {"batches": (True,)}),
     (InferenceSpeed, {"seconds": math.nan}), (Performance, {"top_k": 5}), (Performance, {"seed": -1}),
     (Performance, {"seed": "x"})],
    ids=str,
)  # fmt: skip
def test_what_is_no_sequence_or_seed_is_refused_by_name(kind: Any, wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(ValueError, match=rf"{kind.__name__}\({name}="):
        kind(**wrong)


def test_numbers_of_half_precision_padding_and_hidden_labels_are_those_of_plain_numpy() -> None:
    model, ids = gpt2().to(torch.bfloat16), tokens(10)
    mask = torch.ones_like(ids)
    mask[0], mask[1, :3], mask[2, 6:] = 0, 0, 0
    labels = ids.clone()
    labels[3, :4] = -100
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    found = PerformanceAnalyzer(AuditSession(model)).compute_basic_metrics([batch])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits.double().numpy()
    losses: list[float] = []
    ranks: list[int] = []
    for row in range(len(ids)):
        for place in range(1, ids.shape[1]):
            gold = int(labels[row, place])
            if gold == -100 or not mask[row, place] or not mask[row, place - 1]:
                continue
            each = logits[row, place - 1]
            losses.append(float(np.log(np.exp(each - each.max()).sum()) + each.max() - each[gold]))
            ranks.append(int((each > each[gold]).sum() + (each[:gold] == each[gold]).sum()))
    assert (found["examples"], found["positions"]) == (9, len(losses))
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-6)
    for k in (1, 5, 10):
        assert found["top_k_accuracy"][str(k)] == pytest.approx(np.mean(np.array(ranks) < k))
    assert found["loss_low"] < found["loss"] < found["loss_high"]


def test_a_fresh_process_does_not_import_what_no_pass_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", importlib.util.find_spec)
    assert importlib.util.find_spec("scipy") is not None
    _hide_unused()
    assert importlib.util.find_spec("scipy") is None
    assert importlib.util.find_spec("torch") is not None
