"""What is quantised together, in models of many families."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from learnscope.model.bits.quantise import quantised_weights
from learnscope.model.bits.quantised_units import UnitsError, find_units
from learnscope.tensor.bits.quantize import Scheme, fake_quantize
from model.bits.quantised_models import BUILDERS, build

QKVO = [f"self_attn.{x}_proj.weight" for x in "qkvo"]
BERT = [*(f"attention.self.{x}.weight" for x in ("query", "key", "value")), "attention.output.dense.weight"]
GPT2_MLP = ["mlp.c_fc.weight", "mlp.c_proj.weight"]

BLOCKS = {  # family: path of the stack, and what the attention and the MLP of a block hold
    "gpt2": ("transformer.h", ["attn.c_attn.weight", "attn.c_proj.weight"], GPT2_MLP),
    "lora": ("transformer.h", ["attn.c_attn.base_layer.weight", "attn.c_proj.weight"], GPT2_MLP),
    "llama": ("model.layers", QKVO, [f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")]),
    "bert": ("bert.encoder.layer", BERT, ["intermediate.dense.weight", "output.dense.weight"]),
    "vit": ("vit.layers", [f"attention.{x}_proj.weight" for x in "qkvo"], ["mlp.fc1.weight", "mlp.fc2.weight"]),
    "mixtral": ("model.layers", QKVO, ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    "encoder": (
        "layers",
        ["self_attn.in_proj_weight", "self_attn.out_proj.weight"],
        ["linear1.weight", "linear2.weight"],
    ),
}
BLOCKS |= {"qwen2": BLOCKS["llama"], "qwen3": BLOCKS["llama"], "gpt_oss": BLOCKS["mixtral"]}


@pytest.mark.parametrize("family", BLOCKS)
def test_attention_and_mlp_of_every_block(family: str) -> None:
    stack, attention, mlp = BLOCKS[family]
    layers = [f"{stack}.0", f"{stack}.1"]
    units = find_units(build(family))
    assert [unit.name for unit in units] == [f"{layer}.{part}" for layer in layers for part in ("attn", "mlp")]
    for number, layer in enumerate(layers):
        for part, expected in (("attn", attention), ("mlp", mlp)):
            unit = next(one for one in units if one.name == f"{layer}.{part}")
            assert (unit.layer, unit.index, unit.part) == (layer, number, part)
            names = [tensor.name.removeprefix("base_model.model.") for tensor in unit.tensors]
            assert names == [f"{layer}.{name}" for name in expected]


def test_a_decoder_goes_on_where_its_encoder_ends() -> None:
    units = find_units(build("t5"))
    assert [(unit.layer, unit.index) for unit in units if unit.part == "mlp"] == [
        ("encoder.block.0", 0), ("encoder.block.1", 1), ("decoder.block.0", 2),
    ]  # fmt: skip
    decoder = next(unit for unit in units if unit.name == "decoder.block.0.attn")
    assert sum("EncDecAttention" in tensor.name for tensor in decoder.tensors) == 4
    assert {unit.index for unit in units} == {0, 1, 2}


def test_without_blocks_every_module_is_a_unit() -> None:
    assert [unit.name for unit in find_units(build("sequential"))] == ["0", "2"]
    assert [(unit.name, unit.part, unit.index) for unit in find_units(build("conv"))] == [
        ("first", "other", None), ("up", "other", None), ("fc", "other", None),
    ]  # fmt: skip
    lstm = find_units(build("lstm"))
    assert [(unit.name, len(unit.tensors)) for unit in lstm] == [("lstm", 4), ("out", 1)]
    assert [unit.name for unit in find_units(nn.Linear(3, 2))] == ["(root)"]


def test_what_stands_outside_of_blocks_comes_when_asked_for() -> None:
    outside = {unit.name: unit.part for unit in find_units(build("llama"), embeddings=True) if unit.index is None}
    assert outside == {"model.embed_tokens": "embedding", "lm_head": "head"}
    tied = {unit.name: unit.part for unit in find_units(build("qwen2"), embeddings=True) if unit.index is None}
    assert tied == {"model.embed_tokens": "embedding"}
    bert = {unit.name: unit.part for unit in find_units(build("bert"), embeddings=True) if unit.index is None}
    assert bert["bert.pooler.dense"] == "other"
    assert bert["classifier"] == "head"
    assert bert["bert.embeddings.word_embeddings"] == "embedding"


@pytest.mark.parametrize("family", BUILDERS)
def test_every_large_weight_is_in_one_unit_or_left_for_a_reason(family: str) -> None:
    model = build(family)
    units = find_units(model, embeddings=True)
    held = [tensor.name for unit in units for tensor in unit.tensors]
    assert len(held) == len(set(held))
    parameters = dict(model.named_parameters())
    assert all(tuple(parameters[t.name].shape) == t.shape for unit in units for t in unit.tensors)
    left = [name for name, p in parameters.items() if p.ndim > 1 and name not in held]
    reasons = ("lora_", "mlp.gate.weight", "mlp.router.", "cls_token", "position_embeddings", "_bias")
    assert all(any(reason in name for reason in reasons) for name in left), left
    assert sum(parameters[name].numel() for name in left) < 0.1 * sum(p.numel() for p in parameters.values())


def test_scales_are_of_output_channels_in_every_layout() -> None:
    """Against a loop over what each module calls an output."""
    scheme = Scheme(symmetric=True)

    def new_weights(family: str) -> tuple[dict[str, torch.Tensor], dict[str, nn.Parameter]]:
        model = build(family)
        units = find_units(model)
        return quantised_weights(model, {u.name: 3 for u in units}, scheme, units), dict(model.named_parameters())

    new, old = new_weights("gpt2")
    name = "transformer.h.0.mlp.c_fc.weight"  # (in, out)
    for out in (0, 50, 95):
        assert torch.equal(new[name][:, out], fake_quantize(old[name][:, out][None], 3, scheme)[0])
    for family, transposed in (("mixtral", False), ("gpt_oss", True)):
        new, old = new_weights(family)
        for name in ("model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj"):
            for expert in range(3):
                one = old[name][expert].T if transposed else old[name][expert]
                expected = fake_quantize(one, 3, scheme)
                assert torch.equal(new[name][expert], expected.T if transposed else expected)
    new, old = new_weights("conv")
    for out in range(6):
        kernel = old["first.weight"][out]
        assert torch.equal(
            new["first.weight"][out], fake_quantize(kernel.reshape(1, -1), 3, scheme).reshape(kernel.shape)
        )
    for out in range(4):
        kernel = old["up.weight"][:, out]
        assert torch.equal(
            new["up.weight"][:, out], fake_quantize(kernel.reshape(1, -1), 3, scheme).reshape(kernel.shape)
        )
    assert all(value.is_contiguous() for value in new.values())


def test_experts_that_do_not_say_their_layout_are_told_by_their_shapes() -> None:
    class Experts(nn.Module):
        def __init__(self, transposed: bool) -> None:
            super().__init__()
            up, down = ((2, 6, 16), (2, 8, 6)) if transposed else ((2, 16, 6), (2, 6, 8))
            self.gate_up_proj, self.down_proj = nn.Parameter(torch.ones(up)), nn.Parameter(torch.ones(down))

    for transposed, dim in ((True, 1), (False, 2)):
        (unit,) = find_units(nn.Sequential(Experts(transposed)))
        assert [tensor.in_dims for tensor in unit.tensors] == [(dim,), (dim,)]
        assert [tensor.matrix_shape for tensor in unit.tensors] == [(32, 6), (12, 8)]


def test_there_and_back_is_the_same_tensor() -> None:
    for family in BUILDERS:
        model = build(family)
        parameters = dict(model.named_parameters())
        for unit in find_units(model, embeddings=True):
            for tensor in unit.tensors:
                matrix = tensor.as_matrix(parameters[tensor.name])
                assert tuple(matrix.shape) == tensor.matrix_shape
                assert torch.equal(tensor.as_stored(matrix), parameters[tensor.name])


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(UnitsError, match="LayerNorm has no weights that could be quantised"):
        find_units(nn.LayerNorm(4))
