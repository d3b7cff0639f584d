"""What torchao runs is what was measured."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from learnscope.model.bits.ledger import ledger
from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import find_units
from learnscope.model.bits.torchao_export import ExportError, to_torchao
from learnscope.tensor.bits.quantize import QuantiseError, Scheme
from model.bits.quantised_models import TOKENS, build, outputs


def gpt2() -> nn.Module:
    """Sizes that the int4 kernel takes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 16, "vocab_size": 48}
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, pad_token_id=0, **sizes)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.15)
    built: nn.Module = model
    return built


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(granularity="group", group_size=32), Scheme(granularity="tensor")])
def test_the_logits_are_those_of_the_measured_model(scheme: Scheme) -> None:
    model = gpt2()
    answer = outputs(model, "gpt2")
    for widths in ((8, 8), (4, 4), (8, 4)):
        bits = {unit.name: widths[unit.part == "mlp"] for unit in find_units(model)}
        exported = to_torchao(model, bits, scheme)
        with quantised(model, bits, scheme):
            expected = outputs(model, "gpt2")
        got = outputs(exported, "gpt2")
        changed = (expected - answer).norm()
        assert (got - expected).norm() < 1e-4 * changed  # sums in another order; the quantiser is the same
        assert changed > 1e-3 * answer.norm()
    assert torch.equal(outputs(model, "gpt2"), answer)
    assert type(model.get_submodule("transformer.h.0.mlp.c_fc")).__name__ == "Conv1D"


def test_asymmetric_four_bits_and_the_bytes_that_are_held() -> None:
    model = gpt2()
    scheme = Scheme(symmetric=False, granularity="group", group_size=32)
    bits = {unit.name: 4 for unit in find_units(model)}
    exported = to_torchao(model, bits, scheme)
    with quantised(model, bits, scheme):
        expected = outputs(model, "gpt2")
    torch.testing.assert_close(outputs(exported, "gpt2"), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    weight = exported.get_submodule("transformer.h.0.mlp.c_fc").weight
    assert type(weight).__name__ == "Int4OpaqueTensor"
    assert weight.qdata.nbytes == 64 * 256 // 2  # type: ignore[union-attr]
    held = to_torchao(model, {"transformer.h.0.mlp": 8}).get_submodule("transformer.h.0.mlp.c_fc").weight
    assert type(held).__name__ == "Int8Tensor"
    unit = ledger(model, {"transformer.h.0.mlp": 8}).by_unit["transformer.h.0.mlp"]
    both = [
        to_torchao(model, {"transformer.h.0.mlp": 8}).get_submodule(f"transformer.h.0.mlp.{n}")
        for n in ("c_fc", "c_proj")
    ]
    assert sum(module.weight.qdata.nbytes + module.weight.scale.nbytes for module in both) == unit  # type: ignore[union-attr]


def test_bfloat16_within_its_rounding() -> None:
    model = gpt2().to(torch.bfloat16)
    answer = outputs(model, "gpt2").float()
    for width in (8, 4):
        scheme = Scheme(scale_dtype=torch.bfloat16)
        bits = {unit.name: width for unit in find_units(model)}
        with quantised(model, bits, scheme):
            expected = outputs(model, "gpt2").float()
        got = outputs(to_torchao(model, bits, scheme), "gpt2").float()
        assert (got - expected).abs().max() <= 16 * torch.finfo(torch.bfloat16).eps * answer.abs().max()


def test_a_tied_head_becomes_a_tensor_of_its_own_and_that_is_said() -> None:
    model = gpt2()
    with pytest.warns(UserWarning, match=r"transformer.wte and lm_head were one tensor and are two"):
        exported = to_torchao(model, {"transformer.wte": 8})
    with quantised(model, {"transformer.wte": 8}):
        expected = outputs(model, "gpt2")
        table = model.get_parameter("transformer.wte.weight").clone()
    assert torch.equal(exported.get_parameter("transformer.wte.weight"), table)
    torch.testing.assert_close(outputs(exported, "gpt2"), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        blocks = to_torchao(model, {"transformer.h.0.attn": 8})
    assert blocks.get_parameter("lm_head.weight") is blocks.get_parameter("transformer.wte.weight")


def test_llama_runs_too() -> None:
    model = build("llama")
    bits = {unit.name: 8 if unit.part == "mlp" else 4 for unit in find_units(model)}
    exported = to_torchao(model, bits)
    with quantised(model, bits):
        expected = outputs(model, "llama")
    torch.testing.assert_close(outputs(exported, "llama"), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert exported(input_ids=TOKENS).logits.shape == expected.shape


def test_what_torchao_cannot_do_is_refused_by_name() -> None:
    model = build("gpt2")  # of width 24
    first = "transformer.h.0.attn"
    for bits in (2, 3, 5, 6, 7, 16):
        with pytest.raises(ExportError, match=f"{first}: torchao has nothing for {bits} bits"):
            to_torchao(model, {first: bits})
    with pytest.raises(ExportError, match=r"c_attn.weight: the int4 kernel needs .* this weight is \[72, 24\]"):
        to_torchao(model, {first: 4})
    with pytest.raises(ExportError, match="int8 weights are symmetric"):
        to_torchao(model, {first: 8}, Scheme(symmetric=False))
    with pytest.raises(ExportError, match="24 input features are no multiple of 7"):
        to_torchao(model, {first: 8}, Scheme(granularity="group", group_size=7))
    with pytest.raises(ExportError, match=r"is torch\.float64"):
        to_torchao(build("gpt2").double(), {first: 8})
    with pytest.raises(ExportError, match=r"first.weight: torchao quantises Linear, not Conv2d"):
        to_torchao(build("conv"), {"first": 8})
    with pytest.raises(ExportError, match=r"in_proj_weight: torchao quantises Linear, not MultiheadAttention"):
        to_torchao(build("encoder"), {"layers.0.attn": 8})
    with pytest.raises(QuantiseError, match="meta device"):
        to_torchao(nn.Sequential(nn.Linear(2, 2, device="meta")), {"0": 8})
    kept = to_torchao(model, {first: 32})
    assert torch.equal(outputs(kept, "gpt2"), outputs(model, "gpt2"))
