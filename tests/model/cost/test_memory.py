"""Sizes against sums by hand, peaks against what a pass is known to allocate."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.cost import memory, memory_child
from learnscope.model.cost.memory_child import NoHighWaterMark, kilobytes, most_so_far
from learnscope.model.cost.memory_parts import sizes
from learnscope.posttrain.session import AuditSession
from learnscope.probes.cost.memory_use import MemoryUse
from learnscope.quantities.cost import MemoryUse as Q
from learnscope.reading.cells import by_scope, value
from learnscope.record import Record
from probes.reference import tiny_gpt2

BUFFER = 200_000_000


@pytest.fixture(autouse=True)
def _started_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "subprocess", subprocess)


class Allocates(nn.Module):
    """Fills a buffer of a known size while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + torch.ones(BUFFER // 4)[0]


DATA = [(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))]


def looked(model: nn.Module, data: Any = DATA) -> Record:
    return AuditSession(model).measure(MemoryUse(process=True), data)


def test_the_peak_of_a_pass_in_this_process_is_what_it_allocates() -> None:
    record = looked(Allocates())
    assert value(record, Q.run_bytes, process="own") == pytest.approx(BUFFER, rel=0.1)
    assert float(value(record, Q.peak_bytes, process="own") or 0) > BUFFER
    assert record.notes["not_fresh"] == (
        "only models of transformers can be loaded again by another process, and Allocates is none"
    )
    small = looked(nn.Linear(4, 2))
    assert float(value(small, Q.run_bytes) or 0) < 0.1 * BUFFER, "the mark of the pass before is set back"


def test_a_model_of_transformers_is_run_in_a_fresh_process() -> None:
    """Its logits are by far the most that it makes, and what this process holds does not count."""
    ballast = torch.ones(100_000_000)
    vocabulary = 50_000
    model = tiny_gpt2(n_layer=1, n_embd=8, n_head=1, vocab_size=vocabulary, n_positions=128)
    model.train()
    config = model.config.to_dict()
    ids = torch.randint(0, vocabulary, (8, 128))
    record = looked(model, [{"input_ids": ids, "labels": ids}])
    logits = 8 * 128 * vocabulary * 4
    assert value(record, Q.run_bytes, process="fresh") == pytest.approx(logits, rel=0.1)
    libraries = record.notes["libraries_bytes"]
    assert logits < float(value(record, Q.peak_bytes, process="fresh") or 0) - libraries < 1.5 * logits
    assert ballast.nbytes > 1.5 * logits
    assert model.training
    assert model.config.to_dict() == config


def test_why_a_model_is_not_run_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [{"input_ids": torch.zeros(1, 4, dtype=torch.long)}]
    mixed = tiny_gpt2()
    mixed.unused = nn.Linear(1, 1).bfloat16()
    assert looked(mixed, data).notes["not_fresh"] == "the model's parameters are not all of one floating-point type"
    monkeypatch.setattr(memory.sys, "executable", "/nowhere/python")
    record = looked(tiny_gpt2(), data)
    assert record.notes["not_fresh"].startswith("another process could not run the model")
    assert value(record, Q.peak_bytes, process="own") is not None


def test_a_process_that_may_not_set_its_mark_back_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory_child, "CLEAR", tmp_path / "missing" / "clear_refs")
    record = looked(nn.Linear(4, 2))
    assert any(row.name == "peak_bytes" for row in record.rows())
    for row in record.rows():
        if row.name in ("peak_bytes", "run_bytes"):
            assert row.value is None
            assert str(row.status).startswith("the high-water mark of the memory cannot be reset")
    monkeypatch.setattr(memory_child, "STATUS", tmp_path / "status")
    with pytest.raises(NoHighWaterMark, match="does not report how much memory"):
        kilobytes("VmRSS")
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t   123 kB\n")
    assert kilobytes("VmRSS") == 123
    with pytest.raises(NoHighWaterMark, match="no line VmHWM"):
        kilobytes("VmHWM")


def test_the_high_water_mark_is_in_bytes() -> None:
    held = torch.ones(50_000_000)
    assert most_so_far() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert most_so_far() > held.nbytes


def test_parts_of_gpt2_by_hand() -> None:
    model = tiny_gpt2()
    d, vocabulary, positions, layers = 16, 40, 16, 2
    parts, tied = sizes(model)
    expected = {
        "embedding": (vocabulary + positions) * d,
        "attention": layers * (4 * d * d + 4 * d),
        "mlp": layers * (8 * d * d + 5 * d),
        "norm": (2 * layers + 1) * 2 * d,
        "head": 0,
        "other": 0,
    }
    assert {part: size.parameters for part, size in parts.items()} == expected
    assert sum(expected.values()) == sum(p.numel() for p in model.parameters())
    assert {part: size.bytes for part, size in parts.items()} == {part: 4 * n for part, n in expected.items()}
    assert tied == {"lm_head.weight": "transformer.wte.weight"}
    untied = sizes(tiny_gpt2(tie_word_embeddings=False))[0]
    assert untied["head"].parameters == vocabulary * d


def test_parts_of_other_models() -> None:
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

    small = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 12,
             "vocab_size": 20, "max_position_embeddings": 10}  # fmt: skip
    bert = {
        part: size.parameters for part, size in sizes(BertForSequenceClassification(BertConfig(**small)))[0].items()
    }
    assert bert == {
        "embedding": (20 + 10 + 2) * 8,
        "attention": 4 * (8 * 8 + 8),
        "mlp": 8 * 12 + 12 + 12 * 8 + 8,
        "norm": 3 * 16,
        "head": 8 * 2 + 2,
        "other": 8 * 8 + 8,  # the pooler
    }
    llama = {part: size.parameters for part, size in sizes(LlamaForCausalLM(LlamaConfig(**small)))[0].items()}
    assert llama == {"embedding": 160, "attention": 4 * 64, "mlp": 3 * 96, "norm": 3 * 8, "head": 160, "other": 0}


def test_buffers_shared_memory_and_dtypes_count_as_they_lie() -> None:
    model = nn.Module()
    model.narrow = nn.Parameter(torch.zeros(10, dtype=torch.bfloat16))
    model.again = nn.Parameter(model.narrow.data)  # another parameter, the same memory
    model.register_buffer("wide", torch.zeros(1).expand(1000))
    model.norm = nn.BatchNorm1d(3)
    parts, tied = sizes(model)
    assert (parts["other"].parameters, parts["other"].bytes) == (10, 20 + 4)
    assert (parts["norm"].parameters, parts["norm"].bytes) == (6, 4 * 12 + 8)
    assert tied == {"again": "narrow"}
    record = looked(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    assert value(record, Q.parameters, "model") == 10 + 4
    assert value(record, Q.model_bytes) == 4 * (10 + 4 + 4) + 8
    assert sum(by_scope(record, "part", Q.bytes)[0].values()) == value(record, Q.model_bytes)
