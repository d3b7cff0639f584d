"""Folders that transformers loads with torchao and with compressed-tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from learnscope.model.bits.exports.export import Exported, export
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.bits.torchao_export import ExportError
from learnscope.tensor.bits.quantize import Quantised, Scheme, quantize
from model.bits.exports.exported_models import BATCHES, blocks_at, gpt2, llama, logits, mean_kl


def auto(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def check_as_promised(told: Exported, model: Any, bits: dict[str, int], scheme: Scheme) -> Any:
    """The folder, loaded as anybody would, computes what `quantised` measures, in the bytes that were promised."""
    back = auto(told.path)
    with quantised(model, bits, scheme):
        expected = logits(model)
    got = logits(back)
    # the same numbers, summed in another order: a few roundings of 2^-23 each in a sum of up to 96 products
    assert float((got - expected).abs().max()) <= 100 * 2**-23 * float(expected.abs().max()) * 96**0.5
    assert told.kl == pytest.approx(mean_kl(model, back), rel=1e-3)
    assert told.kl == pytest.approx(told.promised_kl, rel=1e-3)
    assert told.file_bytes == (told.path / "model.safetensors").stat().st_size
    assert abs(told.file_bytes - told.promised_bytes) <= 0.01 * told.promised_bytes
    return back


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(granularity="group", group_size=32), Scheme(granularity="tensor")])
def test_torchao_int8(scheme: Scheme, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    model = llama()
    bits = {**blocks_at(model, 8, 8), "lm_head": 8}
    told = export(model, bits, scheme, tmp_path / "m", format="torchao", batches=BATCHES)
    back = check_as_promised(told, model, bits, scheme)
    assert type(back.lm_head.weight).__name__ == "Int8Tensor"
    assert type(back.model.embed_tokens.weight) is torch.nn.Parameter
    assert {path.suffix for path in (tmp_path / "m").iterdir()} <= {".json", ".safetensors"}


def test_torchao_int8_with_a_tied_head(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    model = llama(tie_word_embeddings=True)
    bits = {**blocks_at(model, 8, 32), "model.embed_tokens": 8}
    told = export(model, bits, None, tmp_path / "m", format="torchao", batches=BATCHES)
    assert "tied" in told.notes[0]
    check_as_promised(told, model, bits, Scheme())


@pytest.mark.parametrize("symmetric", [True, False])
def test_torchao_int4(symmetric: bool, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    model = llama().to(torch.bfloat16)
    scheme = Scheme(symmetric=symmetric, granularity="group", group_size=32, scale_dtype=torch.bfloat16)
    bits = blocks_at(model, 4, 4)
    told = export(model, bits, scheme, tmp_path / "m", format="torchao", batches=BATCHES)
    assert abs(told.file_bytes - told.promised_bytes) <= 0.01 * told.promised_bytes
    assert "needs a GPU" in told.checked_by
    weight = auto(tmp_path / "m").model.layers[0].mlp.up_proj.weight
    assert type(weight).__name__ == "Int4Tensor"
    assert weight.qdata.nbytes == 96 * 64 // 2
    # by the rule that torchao's kernel states: the signed code times the scale, plus the zero point
    data = weight.qdata.to(torch.int16)
    nibbles = torch.stack([data & 15, data >> 4 & 15], -1).reshape(96, 64)
    codes = torch.where(nibbles > 7, nibbles - 16, nibbles).float()
    wide = (x.float().T.repeat_interleave(32, 1) for x in (weight.scale, weight.zero_point))
    scale, zero = wide
    with quantised(model, bits, scheme):
        expected = model.get_parameter("model.layers.0.mlp.up_proj.weight").detach().float().clone()
    # one rounding of the zero point (up to 15 steps) and one of the result, to 8 bits each
    most = 2**-8 * (15 * scale + expected.abs())
    assert bool(((codes * scale + zero - expected).abs() <= most).all())
    assert told.kl == pytest.approx(told.promised_kl, rel=0.05)  # bfloat16 logits


@pytest.mark.parametrize(
    ("scheme", "attn", "mlp"),
    [
        (Scheme(), 3, 4),
        (Scheme(granularity="group", group_size=32), 5, 8),
        (Scheme(symmetric=False, granularity="group", group_size=16), 4, 2),
        (Scheme(symmetric=True, granularity="tensor"), 8, 7),
    ],
)
def test_compressed_tensors(scheme: Scheme, attn: int, mlp: int, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    model = llama()
    bits = {**blocks_at(model, attn, mlp), "lm_head": 8}
    told = export(model, bits, scheme, tmp_path / "m", format="compressed-tensors", batches=BATCHES)
    back = check_as_promised(told, model, bits, scheme)
    with quantised(model, bits, scheme):
        for unit in find_units(model, embeddings=True):
            for tensor in unit.tensors:
                assert torch.equal(back.get_parameter(tensor.name), model.get_parameter(tensor.name)), tensor.name
    config = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"


def test_compressed_tensors_holds_embeddings_in_8_bits_also_tied_ones(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    for tied in (False, True):
        model = llama(tie_word_embeddings=tied)
        bits = {**blocks_at(model, 4, 4), "model.embed_tokens": 8}
        told = export(model, bits, None, tmp_path / f"m{tied}", format="compressed-tensors", batches=BATCHES)
        check_as_promised(told, model, bits, Scheme())
        assert ("stored twice" in "".join(told.notes)) == tied
        with pytest.raises(ExportError, match=r"as int8, symmetric, and not with 4 bits: give model.embed_tokens 8"):
            export(model, {"model.embed_tokens": 4}, None, tmp_path / "no", format="compressed-tensors")
    assert not (tmp_path / "no").exists()


def test_the_embeddings_of_a_gpt2(tmp_path: Path) -> None:
    """Its blocks are Conv1D, which neither library has; its embeddings can be exported all the same."""
    pytest.importorskip("compressed_tensors")
    pytest.importorskip("torchao")
    model = gpt2()
    bits = {"transformer.wte": 8}
    for format in ("compressed-tensors", "torchao"):
        told = export(model, bits, None, tmp_path / format, format=format, batches=BATCHES)
        check_as_promised(told, model, bits, Scheme())
        with pytest.raises(ExportError, match=r"c_attn is a Conv1D of transformers.*Export this model as 'gguf'"):
            export(model, blocks_at(model, 8, 8), None, tmp_path / "no", format=format)


def test_codes_that_were_given_are_those_that_are_loaded(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    pytest.importorskip("torchao")
    model, scheme = llama(), Scheme()
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = model.get_parameter(name).detach()
    for bits, format in ((3, "compressed-tensors"), (8, "torchao")):
        rounded = quantize(weight.roll(1, 0), bits, scheme)  # of other rows: no rounding of this weight gives these
        chosen = {"model.layers.0.attn": bits}
        told = export(
            model, chosen, scheme, tmp_path / format, format=format, quantised={name: rounded}, batches=BATCHES
        )
        back = auto(tmp_path / format)
        logits(back)  # compressed-tensors decompresses at the first pass
        got = back.get_parameter(name)
        got = got.dequantize() if hasattr(got, "qdata") else got
        assert float((got - weight.roll(1, 0)).abs().max()) <= float(rounded.scale.max()) * (0.5 + 2**-20)  # type: ignore[union-attr]
        assert told.kl == pytest.approx(told.promised_kl, rel=1e-3)
    wrong = {name: Quantised(rounded.codes[:8], rounded.scale, None, 8, scheme, weight.dtype)}
    with pytest.raises(ExportError, match=r"the codes of .*q_proj.weight are \[8, 64\], its weight is \[64, 64\]"):
        export(model, {"model.layers.0.attn": 8}, scheme, tmp_path / "no", format="torchao", quantised=wrong)
    factors = Quantised(rounded.codes, rounded.scale, None, 8, scheme, weight.dtype, torch.ones(64))
    for format in ("torchao", "compressed-tensors"):
        with pytest.raises(ExportError, match=rf"q_proj.weight also has inputs, and {format} holds codes"):
            export(model, {"model.layers.0.attn": 8}, scheme, tmp_path / "no", format=format, quantised={name: factors})
    with pytest.raises(ExportError, match="no unit of the bits has this weight"):
        export(model, {}, scheme, tmp_path / "no", format="torchao", quantised={name: rounded})
    with pytest.raises(ExportError, match="has codes of 8 bits"):
        export(model, {"model.layers.0.attn": 4}, scheme, tmp_path / "no", format="torchao", quantised={name: rounded})


def test_what_the_folders_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    pytest.importorskip("torchao")
    model, first = llama(), "model.layers.0.attn"

    def refused(format: str, match: str, model: Any = model, bits: int = 8, **options: Any) -> None:
        with pytest.raises(ExportError, match=match):
            export(model, {options.pop("unit", first): bits}, Scheme(**options), tmp_path / "m", format=format)
        assert list(tmp_path.iterdir()) == []

    refused("torchao", r"torchao cannot hold model.layers.0.attn \(3 bits\).*Nearest: 4 bits for 3", bits=3)
    refused("torchao", "int4 kernel computes in bfloat16", bits=4)
    refused("torchao", "int8 is symmetric", symmetric=False)
    refused("torchao", "not embeddings; leave model.embed_tokens out", unit="model.embed_tokens")
    refused("torchao", "64 is no multiple of 48", granularity="group", group_size=48)
    refused("compressed-tensors", "64 is no multiple of 48", granularity="group", group_size=48)
    refused("compressed-tensors", "no zero point by tensor", granularity="tensor", symmetric=False)
    refused("compressed-tensors", r"scale_dtype=torch.float32", scale_dtype=torch.float16)
    for format in ("torchao", "compressed-tensors"):
        refused(format, "16 bits in a model of torch.float32 would mix dtypes", bits=16)
        refused(format, "Sequential is no model of transformers", torch.nn.Sequential(torch.nn.Linear(4, 4)), unit="0")
