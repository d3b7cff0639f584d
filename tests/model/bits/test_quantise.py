"""Weights in fewer bits for a while: what changes, what comes back, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from learnscope.model.bits.quantise import from_layers, quantised
from learnscope.model.bits.quantised_units import UnitsError, find_units
from learnscope.model.guard import guard
from learnscope.tensor.bits.quantize import QuantiseError, Scheme, fake_quantize
from model.bits.quantised_models import BUILDERS, TOKENS, build, outputs


def bytes_of(model: nn.Module) -> dict[str, bytes]:
    return {
        name: value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for name, value in model.state_dict().items()
    }


def everything(model: nn.Module, bits: int) -> dict[str, int]:
    return {unit.name: bits for unit in find_units(model, embeddings=True)}


@pytest.mark.parametrize("family", BUILDERS)
def test_as_stored_changes_nothing_two_bits_do_and_all_comes_back(family: str) -> None:
    model = build(family)
    before, answer = bytes_of(model), outputs(model, family)
    with guard(model):
        with quantised(model, everything(model, 32)):
            assert torch.equal(outputs(model, family), answer)
        with quantised(model, {}):
            assert torch.equal(outputs(model, family), answer)
        with quantised(model, everything(model, 2)):
            assert not torch.allclose(outputs(model, family), answer, rtol=1e-3)
        with quantised(model, everything(model, 8), Scheme(granularity="group", group_size=8)):
            close = outputs(model, family)
        assert 0 < (close - answer).norm() < 0.1 * answer.norm()
    assert bytes_of(model) == before
    assert torch.equal(outputs(model, family), answer)


def test_the_outputs_are_those_of_a_model_that_has_the_rounded_weights() -> None:
    """GPT-2, bits apart by layer and part, weights set one by one on a copy."""
    model, other = build("gpt2"), build("gpt2")
    layers = [{"attn_bits": 8, "mlp_bits": 4}, {"attn_bits": 2, "mlp_bits": 16}]
    bits = from_layers(model, layers)
    assert bits == {
        "transformer.h.0.attn": 8,
        "transformer.h.0.mlp": 4,
        "transformer.h.1.attn": 2,
        "transformer.h.1.mlp": 16,
    }
    for number, layer in enumerate(layers):
        block = other.get_submodule(f"transformer.h.{number}")
        for path, wanted in (("attn", layer["attn_bits"]), ("mlp", layer["mlp_bits"])):
            for module in block.get_submodule(path).children():
                if type(module).__name__ == "Conv1D":
                    module.weight.data = fake_quantize(module.weight.T, wanted).T.contiguous()  # type: ignore[union-attr]
    with quantised(model, bits):
        assert torch.equal(outputs(model, "gpt2"), outputs(other, "gpt2"))
        assert torch.equal(model.get_parameter("transformer.wte.weight"), other.get_parameter("transformer.wte.weight"))


def test_all_comes_back_after_an_error_and_gradients_stay() -> None:
    model = build("gpt2")
    frozen = model.get_parameter("transformer.h.0.attn.c_attn.weight")
    frozen.requires_grad_(False)
    loss = model(input_ids=TOKENS, labels=TOKENS).loss  # a backward is pending meanwhile
    before = bytes_of(model)
    with pytest.raises(ZeroDivisionError), guard(model), quantised(model, everything(model, 3), activation_bits=None):
        assert bytes_of(model) != before
        raise ZeroDivisionError
    assert bytes_of(model) == before
    loss.backward()
    assert frozen.grad is None
    assert model.get_parameter("transformer.h.0.mlp.c_fc.weight").grad is not None


def test_tied_weights_are_rounded_together() -> None:
    model = build("qwen2")
    with quantised(model, {"model.embed_tokens": 3}):
        head, table = model.get_parameter("lm_head.weight"), model.get_parameter("model.embed_tokens.weight")
        assert head is table
        assert len(table[5].unique()) <= 8
    assert len(table[5].unique()) > 8


def test_half_precision_models_and_empty_weights() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = build("llama").to(dtype)
        before, answer = bytes_of(model), outputs(model, "llama")
        with quantised(model, everything(model, 4)):
            assert all(p.dtype == dtype for p in model.parameters())
            assert not torch.equal(outputs(model, "llama"), answer)
        with quantised(model, everything(model, 16)):
            assert torch.equal(outputs(model, "llama"), answer)
        assert bytes_of(model) == before
    empty = nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 2))
    with quantised(empty, {"0": 4, "1": 2}):
        assert empty(torch.ones(1, 3)).shape == (1, 2)


def test_inside_autocast_the_rounded_weights_are_used() -> None:
    model = build("llama")
    with torch.autocast("cpu", torch.bfloat16):
        plain = outputs(model, "llama")
        with quantised(model, everything(model, 2)):
            rounded = outputs(model, "llama")
        again = outputs(model, "llama")
    assert not torch.equal(plain, rounded)
    assert torch.equal(plain, again)


def test_activations_are_rounded_on_their_way_in() -> None:
    model = build("sequential")
    first, last = model[0], model[2]  # type: ignore[index]
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    with guard(model), torch.no_grad(), quantised(model, {"0": 8, "2": 32}, activation_bits=4):
        got = model(x)
    token = Scheme(symmetric=True)
    with torch.no_grad():
        hidden = nn.functional.linear(fake_quantize(x, 4, token), fake_quantize(first.weight, 8), first.bias).relu()
        expected = nn.functional.linear(fake_quantize(hidden, 4, token), last.weight, last.bias)
    assert torch.equal(got, expected)
    assert not any(module._forward_pre_hooks for module in model.modules())
    gpt2 = build("gpt2")
    with quantised(gpt2, everything(gpt2, 32), activation_bits=8):
        assert 0 < (outputs(gpt2, "gpt2") - (plain := outputs(build("gpt2"), "gpt2"))).norm() < 0.1 * plain.norm()


@pytest.mark.parametrize(("family", "named"), [("encoder", "self_attn"), ("mixtral", "experts"), ("conv", "first")])
def test_activations_that_cannot_be_reached_are_refused(family: str, named: str) -> None:
    model = build(family)
    before = bytes_of(model)
    with (
        pytest.raises(QuantiseError, match=rf"activation_bits: the inputs of .*{named}"),
        quantised(model, everything(model, 8), activation_bits=8),
    ):
        pass
    assert bytes_of(model) == before
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_cannot_be_is_refused_by_name() -> None:
    model = build("gpt2")
    before = bytes_of(model)
    with pytest.raises(
        UnitsError, match=r"'transformer.h.0.atn' is not a unit .* Did you mean 'transformer.h.0.attn'\?"
    ):
        with quantised(model, {"transformer.h.0.atn": 8}):
            pass
    with pytest.raises(QuantiseError, match=r"transformer.h.0.attn: bits=12: 2 to 8, 16"):
        with quantised(model, {"transformer.h.0.attn": 12}):
            pass
    with pytest.raises(QuantiseError, match="activation_bits=16"):
        with quantised(model, {"transformer.h.0.attn": 8}, activation_bits=16):
            pass
    assert bytes_of(model) == before
    model.get_parameter("transformer.h.1.mlp.c_proj.weight").data[3, 4] = float("nan")
    with pytest.raises(QuantiseError, match=r"transformer.h.1.mlp.c_proj.weight: 1 of its 2304 entries are NaN or Inf"):
        with quantised(model, everything(model, 8)):
            pass
    with torch.device("meta"):
        nowhere = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(QuantiseError, match=r"0.weight is on the meta device"):
        with quantised(nowhere, {"0": 4}):
            pass


def test_bits_by_layer() -> None:
    model = build("t5")
    full = from_layers(find_units(model), [{"attn_bits": 8, "mlp_bits": 4}, {}, {"mlp_bits": 2}])
    assert full == {"encoder.block.0.attn": 8, "encoder.block.0.mlp": 4, "decoder.block.0.mlp": 2}
    with pytest.raises(UnitsError, match="bits for 2 layers were given, the model has 3"):
        from_layers(model, [{}, {}])
    with pytest.raises(UnitsError, match="layer 1: 'attention_bits' is not known"):
        from_layers(model, [{}, {"attention_bits": 8}, {}])
    with pytest.raises(QuantiseError, match=r"encoder.block.1.attn: bits=1"):
        from_layers(model, [{}, {"attn_bits": 1}, {}])
    with pytest.raises(UnitsError, match="no blocks that are known"):
        from_layers(build("sequential"), [{"attn_bits": 8}])
