"""Checkpoints judged weight by weight: errors of an independent rounding, bytes of the ledger, little memory."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from learnscope.cli import main
from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.mixes import uniform
from learnscope.model.bits.quantised_units import find_units
from learnscope.posttrain import weights_only
from learnscope.posttrain.weights_only import judge_weights
from learnscope.tensor.bits.quantize import Scheme
from probes.reference import tiny_gpt2


def llama(**sizes: Any) -> Any:
    torch.manual_seed(0)
    config = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
              "num_attention_heads": 2, "tie_word_embeddings": True} | sizes  # fmt: skip
    return tf.LlamaForCausalLM(tf.LlamaConfig(**config))


@pytest.fixture(params=[llama, tiny_gpt2])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    model = request.param()
    model.save_pretrained(tmp_path / "m", max_shard_size="8kB")
    return model, tmp_path / "m"


def share_lost(matrix: np.ndarray[Any, Any], bits: int) -> float:
    """Σ(w − w′)² / Σw² of rounding each row to the nearest around 0, in float64."""
    scale = np.abs(matrix).max(1, keepdims=True) / (2 ** (bits - 1) - 1)
    return float(((np.round(matrix / scale) * scale - matrix) ** 2).sum() / (matrix**2).sum())


def test_errors_and_bytes_are_those_of_the_model_in_memory(
    saved: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = saved
    assert len(list(folder.glob("*.safetensors"))) > 1, "in several files"
    monkeypatch.setattr(weights_only, "PIECE", 50)  # a few channels at a time
    judged = judge_weights(folder)
    units = find_units(model, embeddings=True)
    assert [each.name for each in judged.tensors] == [tensor.name for unit in units for tensor in unit.tensors]
    parameters = dict(model.named_parameters())
    for each, tensor in zip(judged.tensors, (tensor for unit in units for tensor in unit.tensors), strict=True):
        matrix = tensor.as_matrix(parameters[each.name].detach()).double().numpy()
        for bits in (8, 4):
            assert each.error[bits] == pytest.approx(share_lost(matrix, bits), rel=1e-4), each.name
        assert each.error[2] > each.error[3] > each.error[8] > 0
    for bits in (8, 3):
        known = ledger(model, uniform(units, bits), Scheme(), units)
        assert judged.packed_bytes(bits) == known.packed_bytes
        assert judged.stored_bytes == known.original_bytes
    whole = judge_weights(folder, bits=(4,), scheme=Scheme(granularity="tensor", symmetric=True))
    assert whole.error(4) > judged.error(4), "one scale for all channels"


def test_the_command_writes_tables_and_refuses_what_would_run_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 2] = math.nan
    model.save_pretrained(tmp_path / "m")
    command = ["audit", str(tmp_path / "m"), "--weights_only", "--output_dir", str(tmp_path / "out")]
    assert main([*command, "--bits", "4", "8", "--no-embeddings"]) == 0
    said = capsys.readouterr().out
    assert "signal to rounding error" in said
    body = json.loads((tmp_path / "out" / "weights.json").read_text())
    rows = {row["name"]: row for row in body["tensors"]}
    assert not any("embed" in name for name in rows)
    broken = rows["model.layers.1.mlp.up_proj.weight"]
    assert broken["error"] == {}
    assert "NaN" in broken["reason"]
    assert set(rows["model.layers.0.mlp.up_proj.weight"]["error"]) == {"8", "4"}
    assert "model.layers.1.mlp.up_proj.weight" in (tmp_path / "out" / "weights.md").read_text()
    for more, words in [
        (["--data", "x.jsonl"], "--weights_only runs no model: leave out --data"),
        (["--model_path", str(tmp_path)], "is for one model, and 2 are named"),
        (["--bits", "9"], "2 to 8"),
        (["--bits", "32"], "2 to 8 and 16 are possible"),
    ]:
        assert main([*command, *more]) == 2
        assert words in capsys.readouterr().err
    weights = load_file(tmp_path / "m" / "model.safetensors")
    torch.save(weights, tmp_path / "m.pt")
    assert main(["audit", str(tmp_path / "m.pt"), "--weights_only"]) == 2
    assert "from .safetensors files" in capsys.readouterr().err
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    assert main(command) == 2
    assert "has no model.layers.0.mlp.up_proj.weight" in capsys.readouterr().err


def test_the_memory_is_that_of_a_piece_and_not_of_the_model(tmp_path: Path) -> None:
    """120 MB of weights in a process that may have 60 MB more than it has with a model of some kB."""
    llama().save_pretrained(tmp_path / "small")
    model = llama(vocab_size=1000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=2)
    assert sum(parameter.nbytes for parameter in model.parameters()) > 120e6
    model.save_pretrained(tmp_path / "large", max_shard_size="1GB")
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom learnscope.posttrain.weights_only import judge_weights\n"
        "for folder in sys.argv[1:]:\n    judge_weights(Path(folder), bits=(4,))\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "small"), str(tmp_path / "large")]
    small, large = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert 1000 * (large - small) < 60e6
