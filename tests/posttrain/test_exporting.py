"""The recommended mix in files of other libraries, from the analyzer and from the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learnscope.cli import main
from learnscope.posttrain import ModelAnalyzer, PosttrainError, export_model
from learnscope.posttrain.exporting import in_words
from model.bits.exports.exported_models import BATCHES, blocks_at, gpt2, llama


def test_the_recommended_mix_is_written_as_it_was_measured(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    analyzer = ModelAnalyzer(gpt2(), progress=False)
    with pytest.raises(PosttrainError, match="nothing is recommended yet"):
        export_model(analyzer, tmp_path / "m.gguf")
    ways = {"bits": (8, 4), "granularity": "group", "group_size": 32}
    best = analyzer.bit_width_analyzer.find_optimal_configuration(BATCHES, **ways)
    told = export_model(analyzer, tmp_path / "m.gguf", BATCHES)
    assert told.kl == pytest.approx(told.promised_kl, rel=1e-4)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(told.path).tensors}
    for number in (0, 1):
        expected = f"Q{best['recommended'][f'transformer.h.{number}.mlp']}_0"
        assert kinds[f"blk.{number}.ffn_up.weight"] == expected
    packed = export_model(analyzer, tmp_path / "m.safetensors", BATCHES)
    assert packed.promised_kl != told.promised_kl  # another quantiser: each has its own promise
    first, second, *_ = in_words(told)
    assert f"exported as gguf: {told.path}, {told.file_bytes:,} bytes" in first
    assert f"KL {told.kl:.3g} from the original" in second


def test_bits_that_are_given_need_no_measurement(tmp_path: Path) -> None:
    model: Any = llama()
    told = export_model(ModelAnalyzer(model, progress=False), tmp_path / "m.safetensors", bits=blocks_at(model, 8, 3))
    assert told.kl is None
    assert in_words(told) == [
        f"exported as packed: {told.path}, {told.file_bytes:,} bytes ({told.promised_bytes:,} promised)"
    ]


def test_the_command_refuses_before_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("llama")  # type: ignore[operator]
    (tmp_path / "taken.safetensors").write_bytes(b"a thesis")
    for flags, match in (
        (["--export", "m.onnx"], "--export 'm.onnx': name a file that ends in .safetensors or .gguf, or a folder"),
        (["--export", "taken.safetensors"], "exists and is no earlier export"),
        (["--export", "m.gguf", "--export_format", "torchao"], "torchao is a folder, not a file"),
        (["--export_format", "gguf"], "--export_format 'gguf' is that of a file: name it (--export)"),
    ):
        assert main(["audit", "--model_path", "llama", "--parts", "bit_widths", "--quiet", *flags]) != 0
        assert match in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "taken.safetensors"]


def test_the_command_writes_a_folder_that_transformers_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("compressed_tensors")
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("llama")  # type: ignore[operator]
    asked = ["--model_path", "llama", "--parts", "bit_widths", "--examples", "8", "--length", "12", "--export", "small"]
    assert main(["audit", *asked, "--no_cache"]) == 0
    assert "exported as compressed-tensors: small" in capsys.readouterr().out
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained("small").num_parameters() > 0
    assert json.loads(Path("small/learnscope.json").read_text())["format"] == "compressed-tensors"
