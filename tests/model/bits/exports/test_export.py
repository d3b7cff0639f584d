"""One way to write all formats: whole or not at all, and never over somebody else's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from learnscope.model.bits.exports import export as exporting
from learnscope.model.bits.exports.export import FORMATS, export
from learnscope.model.bits.exports.planning import Plan, Prepared
from learnscope.model.bits.packed import load_packed
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.torchao_export import ExportError
from learnscope.tensor.bits.quantize import Scheme, quantize
from model.bits.exports.exported_models import BATCHES, blocks_at, gpt2, llama, logits, mean_kl
from model.bits.quantised_models import build

PATHS = {"packed": "m.safetensors", "gguf": "m.gguf", "torchao": "m", "compressed-tensors": "m"}
_NEEDS = {"gguf": "gguf", "torchao": "torchao", "compressed-tensors": "compressed_tensors"}


def needs(format: str) -> None:
    if format in _NEEDS:
        pytest.importorskip(_NEEDS[format])


@pytest.mark.parametrize("family", [gpt2, llama])
def test_packed(family: Any, tmp_path: Path) -> None:
    model, scheme = family(), Scheme(granularity="group", group_size=20)
    bits = blocks_at(model, 3, 16)
    told = export(model, bits, scheme, tmp_path / "m.safetensors", batches=BATCHES)
    assert abs(told.file_bytes - told.promised_bytes) <= 0.01 * told.promised_bytes
    back = family()
    load_packed(told.path, back)
    with quantised(model, bits, scheme):
        expected = logits(model)
    assert torch.equal(logits(back), expected)
    assert told.kl == told.promised_kl
    assert told.kl == pytest.approx(mean_kl(model, back), rel=1e-4)


def test_codes_that_were_given_are_packed(tmp_path: Path) -> None:
    model = build("sequential")
    weight = model.get_parameter("0.weight").detach()
    other = quantize(-weight, 4, Scheme())
    export(model, {"0": 4}, None, tmp_path / "m.safetensors", quantised={"0.weight": other})
    back = build("sequential")
    load_packed(tmp_path / "m.safetensors", back)
    assert float((back.get_parameter("0.weight").detach() + weight).abs().max()) <= float(other.scale.max()) * 0.51  # type: ignore[union-attr]
    assert not torch.equal(back.get_parameter("0.weight"), weight)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("when", ["in the middle of writing", "when it is loaded"])
def test_an_interrupted_export_leaves_nothing_and_an_earlier_one_stays(
    format: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(format)
    model = llama()
    path = tmp_path / "out" / PATHS[format]
    bits = blocks_at(model, 8, 8)
    original = FORMATS[format]

    def interrupted(plan: Plan, tokenizer: Any) -> Prepared:
        prepared = original.prepare(plan, tokenizer)

        def stop(new: Path) -> Any:
            assert new.exists()
            raise KeyboardInterrupt

        def write(new: Path) -> None:
            prepared.write(new)
            half = new / "model.safetensors" if new.is_dir() else new
            half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
            stop(new)

        return replace(prepared, **({"load": stop} if when == "when it is loaded" else {"write": write}))

    broken = {**FORMATS, format: exporting.Format(interrupted, original.ending, original.is_our_file)}
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "FORMATS", broken)
        with pytest.raises(KeyboardInterrupt):
            export(model, bits, None, path, format=format)
    assert list(path.parent.iterdir()) == []
    export(model, bits, None, path, format=format)
    before = contents(path)
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "FORMATS", broken)
        with pytest.raises(KeyboardInterrupt):
            export(model, {}, None, path, format=format)
    assert contents(path) == before
    export(model, {**bits, "model.layers.0.attn": 32}, None, path, format=format)  # ours is replaced
    assert contents(path) != before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def contents(path: Path) -> dict[str, bytes]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}


def test_a_file_that_computes_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FORMATS["packed"]

    def wrong(plan: Plan, tokenizer: Any) -> Prepared:
        prepared = original.prepare(plan, tokenizer)

        def load(path: Path) -> nn.Module:
            loaded = prepared.load(path)
            loaded.get_parameter("lm_head.weight").data.mul_(1.01)
            return loaded

        return Prepared(prepared.promised_bytes, prepared.values, prepared.write, load, "")

    broken = {**FORMATS, "packed": exporting.Format(wrong, original.ending, original.is_our_file)}
    monkeypatch.setattr(exporting, "FORMATS", broken)
    with pytest.raises(ExportError, match=r"computed something else: its logits are off by 0\.0"):
        export(llama(), {}, None, tmp_path / "m.safetensors", batches=BATCHES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_what_others_wrote_is_left_alone(format: str, tmp_path: Path) -> None:
    needs(format)
    model, path = llama(), tmp_path / PATHS[format]
    if FORMATS[format].ending:
        path.write_bytes(b"a thesis")
    else:
        path.mkdir()
        (path / "thesis").write_bytes(b"a thesis")
    with pytest.raises(ExportError, match="exists and is no earlier export"):
        export(model, {}, None, path, format=format)
    assert b"a thesis" in contents(path).values()
    export(model, {}, None, path, format=format, overwrite=True)
    assert b"a thesis" not in contents(path).values()


def test_formats_are_guessed_and_wrong_paths_refused(tmp_path: Path) -> None:
    model = build("sequential")
    for path, format, match in (
        ("m.onnx", None, r"name a file that ends in .safetensors or .gguf, or a folder, not .onnx"),
        ("m.bin", "gguf", "name a file that ends in .gguf"),
        ("m.gguf", "torchao", "torchao is a folder, not a file"),
        ("m", "ggufs", r"format='ggufs' is not known. Did you mean '?gguf"),
    ):
        with pytest.raises(ExportError, match=match):
            export(model, {}, None, tmp_path / path, format=format)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match="is a file, so nothing can be written below it"):
        export(model, {}, None, tmp_path / "file" / "m.safetensors")
    (tmp_path / "d.safetensors").mkdir()
    with pytest.raises(ExportError, match="is a folder: name a file"):
        export(model, {}, None, tmp_path / "d.safetensors")
    told = export(model, {"0": 4}, None, tmp_path / "m.safetensors")
    assert (told.format, told.kl, told.promised_kl, told.difference) == ("packed", None, None, None)


def test_nothing_is_drawn_from_the_generators(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model = llama()
    export(model, blocks_at(model, 4, 4), None, tmp_path / "m", batches=BATCHES)
    assert torch.equal(torch.rand(4), expected)
