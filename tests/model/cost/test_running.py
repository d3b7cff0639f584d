"""Cache and activations against sums by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile

from learnscope.model.cost.running import NoPeak, allocated, cache_bytes, read_bytes
from learnscope.posttrain.session import AuditSession
from learnscope.probes.cost.memory_use import MemoryUse
from learnscope.quantities.cost import MemoryUse as Q
from learnscope.reading.cells import value
from probes.reference import tiny_gpt2, tokens

CPU = torch.device("cpu")


def test_the_peak_of_a_chain_of_layers_is_the_largest_pair_of_neighbours() -> None:
    model = nn.Sequential(nn.Linear(10, 1000), nn.ReLU(), nn.Linear(1000, 500), nn.Linear(500, 2))
    with torch.no_grad():
        found = allocated(lambda: model(torch.ones(7, 10)), CPU)
    assert found == 4 * 7 * (10 + 2 * 1000), "the input, made in the pass, and what the first layer and its ReLU hold"
    assert allocated(lambda: None, CPU) == 0


def test_what_is_held_at_the_end_and_freed_before_counts_once() -> None:
    def run() -> Tensor:
        torch.ones(1000).add_(1)
        return torch.ones(600)

    assert 4000 <= allocated(run, CPU) < 4000 + 64, "and the number that is added"


def test_a_second_profiler_is_named_and_the_first_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    with profile() as other:
        with pytest.raises(NoPeak, match="profiler could not be started"):
            allocated(lambda: torch.ones(3), CPU)
        torch.ones(3)
    assert any("ones" in event.name for event in other.events() or ())
    capfd.readouterr()
    allocated(lambda: torch.ones(3), CPU)
    assert capfd.readouterr().err == "", "nothing is written to the terminal"


@pytest.mark.parametrize(("rows", "length"), [(1, 5), (3, 8)])
def test_the_cache_holds_a_key_and_a_value_of_each_token_and_layer(rows: int, length: int) -> None:
    model, width, layers = tiny_gpt2().eval(), 16, 2
    with torch.no_grad():
        assert cache_bytes(model, tokens(rows, length), None) == 2 * layers * rows * length * width * 4


def test_grouped_heads_have_a_smaller_cache() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    model = LlamaForCausalLM(config).bfloat16().eval()
    with torch.no_grad():
        assert cache_bytes(model, tokens(2, 9), None) == 2 * 3 * 2 * 9 * 8 * 2


def test_batch_and_length_are_labels_and_one_example_is_always_measured() -> None:
    model = tiny_gpt2(vocab_size=5000, n_positions=64)
    model.train()
    ids = torch.randint(0, 5000, (4, 32))
    record = AuditSession(model).measure(MemoryUse(), [{"input_ids": ids, "labels": ids}])
    assert model.training
    for batch in (1, 4):
        labels: dict[str, Any] = {"phase": "prefill", "batch": batch, "length": 32}
        assert value(record, Q.cache_bytes, **labels) == 2 * 2 * batch * 32 * 16 * 4
        # the widest place of a block: its input, the norm's output, and the MLP's 4 d, which its activation copies
        widest = 4 * batch * 32 * 16 * 4
        activations = float(value(record, Q.activation_bytes, **labels) or 0)
        assert widest <= activations <= 6 * widest + 4 * 5000 * batch
    assert not [row for row in record.rows() if row.name in ("peak_bytes", "run_bytes")], "only if it is asked for"


def test_a_model_without_a_cache_makes_a_forward_pass() -> None:
    data = [(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))]
    record = AuditSession(nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 2))).measure(MemoryUse(), data)
    assert value(record, Q.cache_bytes, phase="forward", batch=1, length=0) == 0
    assert value(record, Q.activation_bytes, phase="forward", batch=3, length=0) == 4 * 3 * (50 + 2)


def test_a_token_reads_all_but_tables_that_are_only_looked_up() -> None:
    tied, untied = tiny_gpt2(), tiny_gpt2(tie_word_embeddings=False)
    width, vocabulary, positions = 16, 40, 16
    all_tied = sum(parameter.numel() for parameter in tied.parameters())
    assert read_bytes(tied)[0] == all_tied - positions * width, "the head is the table, and is read whole"
    assert read_bytes(untied)[0] == all_tied - positions * width
    assert sum(parameter.numel() for parameter in untied.parameters()) == all_tied + vocabulary * width
    buffers = sum(buffer.nbytes for buffer in tied.buffers())
    assert read_bytes(tied)[1] == 4 * read_bytes(tied)[0] + buffers


def test_wrong_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"MemoryUse\(batches=\(0,\)\): whole numbers from 1"):
        MemoryUse(batches=(0,))
