"""Packed files: as large as the ledger says, the same outputs when loaded, refused when they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.packed import PackedError, load_packed, save_packed
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.weights.sealed import seal_of
from learnscope.tensor.bits.quantize import QuantiseError, Scheme
from model.bits.quantised_models import BUILDERS, build, outputs

SCHEMES = (
    Scheme(),
    Scheme(symmetric=False, granularity="group", group_size=7, scale_dtype=torch.float16),
    Scheme(symmetric=True, granularity="tensor"),
)


def mixed(model: nn.Module) -> dict[str, int]:
    """Bits that differ from unit to unit, all that there are."""
    widths = (2, 3, 4, 16, 5, 8, 6, 32, 7)
    return {unit.name: widths[place % len(widths)] for place, unit in enumerate(find_units(model, embeddings=True))}


def other(family: str) -> nn.Module:
    """The same architecture with other weights and buffers."""
    model = build(family)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(1)
    return model


@pytest.mark.parametrize("family", BUILDERS)
def test_the_bytes_are_the_ledgers_and_the_outputs_the_measured(family: str, tmp_path: Path) -> None:
    for dtype, scheme in zip((torch.float32, torch.float32, torch.bfloat16), SCHEMES, strict=True):
        model, into = build(family), other(family)
        if family not in ("sequential", "conv", "encoder", "vit"):  # whose inputs are float32
            model, into = model.to(dtype), into.to(dtype)
        bits = mixed(model)
        info = save_packed(model, bits, scheme, tmp_path / "model.safetensors")
        with safe_open(info.path, framework="pt") as file:
            stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        assert sum(tensor.nbytes for tensor in stored.values()) == info.tensor_bytes
        assert info.tensor_bytes == ledger(model, bits, scheme).packed_bytes
        assert info.file_bytes == info.path.stat().st_size > info.tensor_bytes
        load_packed(info.path, into)
        with quantised(model, bits, scheme):
            expected = outputs(model, family)
            kept = {name: value.clone() for name, value in model.state_dict().items()}
        assert torch.equal(outputs(into, family), expected)
        for name, value in into.state_dict().items():
            assert torch.equal(value, kept[name]), name
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_model_that_is_saved_stays_and_the_header_says_what_is_there(tmp_path: Path) -> None:
    model = build("gpt2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    info = save_packed(
        model, {"transformer.h.0.attn": 3}, Scheme(granularity="group"), tmp_path / "a" / "p.safetensors"
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with safe_open(info.path, framework="pt") as file:
        header = json.loads(file.metadata()["learnscope"])
        assert file.get_slice("codes/transformer.h.0.attn.c_attn.weight").get_shape() == [24 * 72 * 3 // 8]
        assert file.get_slice("scale/transformer.h.0.attn.c_attn.weight").get_shape() == [72, 1]
    assert header["format"] == 1
    assert header["bits"] == {"transformer.h.0.attn": 3}
    assert header["scheme"] == {"symmetric": None, "granularity": "group", "group_size": 64, "scale_dtype": "float32"}
    row = next(row for row in header["tensors"] if row["name"] == "transformer.h.0.attn.c_attn.weight")
    assert row == {"name": row["name"], "shape": [24, 72], "dtype": "float32", "bits": 3, "in_dims": [0]}


def rewritten(path: Path, change: Any, drop: str | None = None) -> Path:
    """The file with another header, sealed as if it had been written so."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["learnscope"])
        tensors = {key: file.get_tensor(key) for key in file.keys() if key != drop}  # noqa: SIM118
    header.pop("seal")
    change(header)
    header["seal"] = seal_of(header, tensors)
    to = path.with_name("changed.safetensors")
    save_file(tensors, to, metadata={"learnscope": json.dumps(header)})
    return to


def test_a_file_that_does_not_fit_leaves_the_model_alone(tmp_path: Path) -> None:
    model = build("gpt2")
    path = save_packed(model, {"transformer.h.0.attn": 3}, None, tmp_path / "p.safetensors").path
    whole = path.read_bytes()
    cut, flipped, plain = (tmp_path / f"{name}.safetensors" for name in ("cut", "flipped", "plain"))
    cut.write_bytes(whole[:-100])
    flipped.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    save_file({"a": torch.ones(2)}, plain)
    newer = rewritten(path, lambda header: header.update(format=2)).rename(tmp_path / "newer.safetensors")
    codes = "codes/transformer.h.0.attn.c_attn.weight"
    lacking = rewritten(path, lambda header: None, drop=codes).rename(tmp_path / "lacking.safetensors")
    wide = build("gpt2").double()
    larger = build("gpt2")
    larger.get_submodule("transformer").wpe = nn.Embedding(17, 24)
    more = build("gpt2")
    more.register_buffer("extra", torch.ones(1))
    with torch.device("meta"):
        nowhere = build("gpt2").to("meta")
    for file, into, message in (
        (tmp_path / "none.safetensors", other("gpt2"), "there is no packed file"),
        (cut, other("gpt2"), "damaged or not a safetensors file.*save it again"),
        (flipped, other("gpt2"), "do not match its seal"),
        (plain, other("gpt2"), "no packed model: those are made by save_packed"),
        (newer, other("gpt2"), r"packed format 2; this learnscope reads up to 1. Upgrade"),
        (lacking, other("gpt2"), f"{codes} is not there"),
        (path, other("llama"), r"the model lacks transformer.wte.weight. Build the model that was saved"),
        (path, wide, "has dtype float64, in the file float32"),
        (path, larger, r"transformer.wpe.weight has shape \[17, 24\], in the file \[16, 24\]"),
        (path, more, "the file lacks extra"),
        (path, nowhere, "is on the meta device"),
    ):
        before = {name: value.clone() for name, value in into.state_dict().items() if not value.is_meta}
        with pytest.raises(PackedError, match=message):
            load_packed(file, into)
        assert all(torch.equal(value, into.state_dict()[name]) for name, value in before.items())


def test_what_cannot_be_saved_leaves_the_earlier_file(tmp_path: Path) -> None:
    model = build("sequential")
    path = save_packed(model, {"0": 4}, None, tmp_path / "p.safetensors").path
    before = path.read_bytes()
    model.get_parameter("2.weight").data[0, 0] = float("inf")
    with pytest.raises(QuantiseError, match=r"2.weight: 1 of its 21 entries are NaN or Inf"):
        save_packed(model, {"2": 4}, None, path)
    model.set_precision = lambda *_: None  # type: ignore[assignment]
    with pytest.raises(PackedError, match="sets its own precision"):
        save_packed(model, {"0": 4}, None, path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
