"""How much of the processor the documented command takes: on a GPT-2 with its real vocabulary, and by its plan on
models that are too large for a test."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as tf

from learnscope.posttrain.planning.depth import FEWEST, choose_depth
from learnscope.posttrain.planning.effort import OneExample, bit_passes

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_a_bare_gpt2_of_two_layers_takes_two_minutes_of_two_cores(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(tf.GPT2LMHeadModel(tf.GPT2Config(n_layer=2)).state_dict(), tmp_path / "model.pt")
    command = [sys.executable, ROOT / "analyze_model.py", "--model_path", "model.pt", "--output_dir", "out"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # seconds of the processor, on one thread: other work on the machine does not count
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 240
    body = json.loads((tmp_path / "out" / "analysis_results.json").read_text())
    assert set(body["not_run"]) == {"tasks"}, "no file of questions was given"
    assert body["robustness"]["attacks"]["notes"]["examples"] >= FEWEST["robustness"]
    gap = next(row for row in body["robustness"]["attacks"]["rows"] if "robustness_gap" in row["values"])
    assert gap["values"]["robustness_gap_low"] is not None, "there are enough examples for an interval"


@pytest.mark.parametrize(
    ("layers", "width", "inner", "vocabulary", "minutes"),
    [(30, 576, 1536, 49152, 10), (16, 2048, 8192, 32000, 60)],
    ids=["135 million", "a thousand million"],
)
def test_larger_models_are_planned_for_minutes(
    layers: int, width: int, inner: int, vocabulary: int, minutes: float
) -> None:
    """At 15 · 10⁹ multiply-adds a second, less than a core does here, of two cores; on more positions than 96."""
    config = tf.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 192 or 1, head_dim=64, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = tf.LlamaForCausalLM(config)
    weights = sum(parameter.numel() for parameter in model.parameters())
    one = OneExample(128.0 * weights, 128 * vocabulary, 128)
    depth = choose_depth(model, one, 256)
    bits, attacks = (one.shortened(share.tokens) for share in (depth.bits, depth.attacks))
    work = depth.bits.examples * bit_passes(model, depth.bits.examples, depth.alone).work(bits)
    work += depth.attacks.examples * depth.robustness.work(attacks)
    assert depth.bits.examples * (depth.bits.tokens - 1) // 2 >= 240
    assert work / (2 * 15e9) < 60 * minutes
