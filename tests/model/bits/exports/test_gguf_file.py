"""GGUF files: read by gguf and by transformers, with the numbers and the bytes that were promised."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learnscope.model.bits.exports.export import export
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.bits.torchao_export import ExportError
from learnscope.tensor.bits.quantize import Quantised, Scheme, quantize
from model.bits.exports.exported_models import BATCHES, blocks_at, gpt2, llama, logits, mean_kl

gguf = pytest.importorskip("gguf")
BLOCKS = Scheme(granularity="group", group_size=32)


def loaded(path: Path, model: Any, **options: Any) -> Any:
    return type(model).from_pretrained(path.parent, gguf_file=path.name, dtype=model.dtype, **options).eval()


@pytest.mark.parametrize("build", [gpt2, llama])
def test_mixed_types_are_loaded_with_the_promised_outputs_and_bytes(build: Any, tmp_path: Path) -> None:
    model, path = build(), tmp_path / "m.gguf"
    names = [unit.name for unit in find_units(model, embeddings=True)]
    bits = dict(zip(names, [8, 4, 5, 8, 16, 16, 32], strict=False))
    before = logits(model)
    told = export(model, bits, BLOCKS, path, batches=BATCHES)
    assert torch.equal(logits(model), before)
    assert told.format == "gguf"
    assert told.file_bytes == path.stat().st_size
    assert abs(told.file_bytes - told.promised_bytes) <= 0.01 * told.promised_bytes
    back = loaded(path, model, config=model.config)
    reference = mean_kl(model, back)
    assert told.kl == pytest.approx(reference, rel=1e-4)  # float32 logits: 2^-23 of them, on a KL of 1e-3 and more
    assert told.kl == pytest.approx(told.promised_kl, rel=1e-4)
    assert reference > 1e-4
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert {"Q8_0", "Q4_0", "Q5_0", "F16", "F32"} == set(kinds.values())
    assert all(kind == "F32" for name, kind in kinds.items() if "norm" in name or name.endswith("bias"))


@pytest.mark.parametrize("build", [gpt2, llama])
@pytest.mark.parametrize(
    ("bits", "symmetric", "kind", "steps"),
    [
        (8, None, "Q8_0", 254),  # half of the largest number over 127
        (4, True, "Q4_0", 8),  # a whole one: the end that has no code is clipped
        (4, False, "Q4_1", 15),  # half of twice the largest number over 15
        (5, True, "Q5_0", 16),
        (5, False, "Q5_1", 31),
        (16, None, "F16", 2**11),
    ],
)
def test_every_type_decodes_to_the_weight_within_its_rounding(
    build: Any, bits: int, symmetric: bool | None, kind: str, steps: int, tmp_path: Path
) -> None:
    model, path = build(), tmp_path / "m.gguf"
    units = find_units(model)
    export(model, {unit.name: bits for unit in units}, Scheme(symmetric=symmetric), path)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    back = loaded(path, model, config=model.config)
    for name in (tensor.name for unit in units for tensor in unit.tensors):
        weight, got = model.get_parameter(name).detach(), back.get_parameter(name).detach()
        largest = float(weight.abs().max())
        # float16 scales and offsets add 2^-11 of the largest number each
        assert float((got - weight).abs().max()) <= largest / steps + 2**-10 * largest
        assert not torch.equal(got, weight)
    assert kind in {tensor.tensor_type.name for tensor in tensors.values()}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_unquantised_weights_come_back_bit_for_bit(family: str, tmp_path: Path) -> None:
    """Also where query and key rows are reordered, and where the embedding is the head."""
    model = llama(family, tie_word_embeddings=family == "qwen3")
    told = export(model, {}, None, tmp_path / "m.gguf", batches=BATCHES)
    back = loaded(tmp_path / "m.gguf", model, config=model.config)
    for name, parameter in model.named_parameters():
        assert torch.equal(back.get_parameter(name), parameter), name
    assert (told.kl, told.difference) == (0.0, 0.0)


def test_a_llama_is_loaded_without_any_other_file(tmp_path: Path) -> None:
    model = llama()
    export(model, blocks_at(model, 8, 8), None, tmp_path / "m.gguf")
    own, given = loaded(tmp_path / "m.gguf", model), loaded(tmp_path / "m.gguf", model, config=model.config)
    assert own.config.num_key_value_heads == 2
    assert torch.equal(logits(own), logits(given))


@pytest.mark.parametrize(("bits", "symmetric"), [(8, True), (4, True), (4, False), (5, True), (5, False)])
def test_codes_that_were_given_are_the_codes_in_the_file(bits: int, symmetric: bool, tmp_path: Path) -> None:
    model = llama()
    scheme = Scheme(symmetric=symmetric, granularity="group", group_size=32, scale_dtype=torch.float16)
    chosen: dict[str, int] = blocks_at(model, bits, bits)
    ready: dict[str, Quantised] = {}
    shifted = copy.deepcopy(model)
    for unit in find_units(model):
        for tensor in unit.tensors:
            weight = model.get_parameter(tensor.name).detach()
            rounded = quantize(weight, bits, scheme)
            codes = rounded.codes.roll(1, 0)  # no quantiser would choose these
            scale = rounded.scale.roll(1, 0)  # type: ignore[union-attr]
            zero = None if rounded.zero is None else rounded.zero.roll(1, 0)
            ready[tensor.name] = Quantised(codes, scale, zero, bits, scheme, weight.dtype)
            shifted.get_parameter(tensor.name).data.copy_(weight.roll(1, 0))
    told = export(model, chosen, scheme, tmp_path / "m.gguf", quantised=ready, batches=BATCHES)
    back = loaded(tmp_path / "m.gguf", model, config=model.config)
    with quantised(shifted, chosen, scheme):
        for name in ready:
            expected = shifted.get_parameter(name)
            # an offset of up to 2^b steps is rounded to float16
            most = 0 if symmetric else float(2**-11 * 2**bits * ready[name].scale.float().max())  # type: ignore[union-attr]
            assert float((back.get_parameter(name) - expected).detach().abs().max()) <= most
    assert told.kl == pytest.approx(told.promised_kl, rel=1e-4)


def test_bfloat16_models_stay_in_bfloat16(tmp_path: Path) -> None:
    model = llama().to(torch.bfloat16)
    bits = blocks_at(model, 16, 8)
    told = export(model, bits, None, tmp_path / "m.gguf", batches=BATCHES)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == "BF16"
    assert kinds["blk.0.ffn_up.weight"] == "Q8_0"
    assert told.difference is not None
    assert told.difference <= 16 * torch.finfo(torch.bfloat16).eps


def test_what_gguf_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model, path = gpt2(), tmp_path / "m.gguf"
    first = "transformer.h.0.attn"

    def refused(match: str, model: Any = model, bits: Any = None, scheme: Any = None, **options: Any) -> None:
        with pytest.raises(ExportError, match=match):
            export(model, {first: 8} if bits is None else bits, scheme, path, **options)
        assert list(tmp_path.iterdir()) == []

    refused(r"transformer.h.0.attn \(3 bits\). It has 16: F16; 8: Q8_0.*Nearest: 4 bits for 3", bits={first: 3})
    refused(r"Nearest: 4 bits for 2, 8 bits for 7", bits={first: 2, "transformer.h.1.mlp": 7})
    refused(r"Q8_0\) are symmetric", scheme=Scheme(symmetric=False))
    refused("blocks of 32 input features, and this weight has 48", gpt2(n_embd=48))
    refused(r"activation_function='relu'", gpt2(activation_function="relu"))
    refused(r"BertForSequenceClassification: its layout in GGUF is not known", _bert(), bits={})
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    refused("only the plain rotary embedding", llama(rope_parameters=scaled), bits={})
    refused("attention_bias=True", llama(attention_bias=True), bits={})
    refused(r"is torch.float64", gpt2().double())
    weight = model.get_parameter(f"{first}.c_attn.weight").detach().T
    codes = {f"{first}.c_attn.weight": quantize(weight, 8, Scheme())}
    refused("has scales by channel, and GGUF has one for 32", scheme=Scheme(), quantised=codes)


def _bert() -> Any:
    from model.bits.quantised_models import build

    return build("bert")


def test_the_layout_of_blocks_is_that_of_ggufs_own_quantiser() -> None:
    """Where gguf chooses the same codes as we do, the bytes are the same."""
    from learnscope.model.bits.exports.gguf_blocks import blocks

    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(-127, 128, (4, 64), generator=generator)
    whole[:, ::32] = 127  # the largest, so that the scale is 1/128 in both
    weight = whole.float() / 128
    scheme = Scheme(granularity="group", group_size=32, scale_dtype=torch.float16)
    ours = blocks("w", quantize(weight, 8, scheme))
    theirs = gguf.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(ours, theirs)
