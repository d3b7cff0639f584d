"""Names of real models, built small from their configurations."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from learnscope.names import (
    BASE,
    ROOT,
    group_parameters,
    natural_key,
    optimizer_groups,
    resolve,
)

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

LM = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 50}
KV = {**LM, "num_key_value_heads": 2}
STEMS = {"depths": [2, 3], "hidden_sizes": [8, 16]}


def build(model: str, config: str, **sizes: Any) -> nn.Module:
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    return made


def gpt2(layers: int = 3) -> nn.Module:
    return build("GPT2LMHeadModel", "GPT2Config", n_layer=layers, n_embd=16, n_head=2, vocab_size=50)


def llama(layers: int = 2) -> nn.Module:
    return build("LlamaForCausalLM", "LlamaConfig", num_hidden_layers=layers, **LM)


def t5() -> nn.Module:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2, "vocab_size": 50}
    return build("T5ForConditionalGeneration", "T5Config", num_layers=2, num_decoder_layers=3, **sizes)


def swin() -> nn.Module:
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "num_heads": [2, 2], "window_size": 4}
    return build("SwinForImageClassification", "SwinConfig", depths=[2, 3], **sizes)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 16)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


# What builds the model, how many blocks it has, the path of its first one.
FAMILIES: dict[str, tuple[Callable[[], nn.Module], int, str]] = {
    "gpt2": (gpt2, 3, "transformer.h.0"),
    "llama": (llama, 2, "model.layers.0"),
    "qwen2": (
        lambda: build("Qwen2ForCausalLM", "Qwen2Config", num_hidden_layers=2, **KV),
        2,
        "model.layers.0",
    ),
    "qwen3": (
        lambda: build("Qwen3ForCausalLM", "Qwen3Config", num_hidden_layers=2, head_dim=8, **KV),
        2,
        "model.layers.0",
    ),
    "bert": (
        lambda: build("BertForMaskedLM", "BertConfig", num_hidden_layers=2, **LM),
        2,
        "bert.encoder.layer.0",
    ),
    "t5": (t5, 5, "encoder.block.0"),
    "vit": (
        lambda: build(
            "ViTForImageClassification",
            "ViTConfig",
            **{k: v for k, v in LM.items() if k != "vocab_size"},
            num_hidden_layers=2,
            image_size=16,
            patch_size=8,
        ),
        2,
        "vit.",
    ),
    "swin": (swin, 5, "swin.encoder.layers.0.blocks.0"),
    "convnext": (
        lambda: build("ConvNextForImageClassification", "ConvNextConfig", num_stages=2, **STEMS),
        5,
        "convnext.encoder.stages.0.layers.0",
    ),
    "resnet": (
        lambda: build("ResNetForImageClassification", "ResNetConfig", layer_type="basic", **STEMS),
        5,
        "resnet.encoder.stages.0.layers.0",
    ),
    "mamba": (
        lambda: build(
            "MambaForCausalLM",
            "MambaConfig",
            hidden_size=16,
            num_hidden_layers=2,
            vocab_size=50,
            state_size=4,
        ),
        2,
        "backbone.layers.0",
    ),
    "mixtral": (
        lambda: build("MixtralForCausalLM", "MixtralConfig", num_hidden_layers=2, num_local_experts=3, **KV),
        2,
        "model.layers.0",
    ),
    "nn.TransformerEncoder": (encoder, 4, "layers.0"),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[nn.Module, int, str]:
    make, blocks, first = FAMILIES[request.param]
    return make(), blocks, first


def blocks_of(model: nn.Module) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        if resolve(name).recognised:
            found.setdefault(resolve(name).layer, []).append(name)
    return found


def test_recognised_blocks_are_those_of_the_configuration(family: tuple[nn.Module, int, str]) -> None:
    model, blocks, first = family
    found = blocks_of(model)
    assert len(found) == blocks
    assert next(iter(found)).startswith(first)


def test_blocks_exist_and_hold_all_their_parameters(family: tuple[nn.Module, int, str]) -> None:
    model, _, _ = family
    for layer, names in blocks_of(model).items():
        block = model.get_submodule(layer)
        assert names == [f"{layer}.{name}" for name, _ in block.named_parameters()]
        one = resolve(names[0])
        stack = one.layer.rpartition(".")[0]
        assert model.get_submodule(stack)[one.index] is block  # type: ignore[index]


def test_what_is_in_no_block_still_has_its_module_as_layer(family: tuple[nn.Module, int, str]) -> None:
    model, _, _ = family
    names = [name for name, _ in model.named_parameters()]
    for found in (resolve(name) for name in names if not resolve(name).recognised):
        assert (found.index, found.recognised) == (None, False)
        assert any(True for _ in model.get_submodule(found.layer).parameters(recurse=False))


def test_encoder_and_decoder_never_share_a_layer() -> None:
    assert list(blocks_of(t5())) == [
        *(f"encoder.block.{i}" for i in range(2)),
        *(f"decoder.block.{i}" for i in range(3)),
    ]


@pytest.mark.parametrize(
    ("name", "layer", "component"),
    [
        ("transformer.h.0.attn.c_attn.weight", "transformer.h.0", "c_attn"),
        ("transformer.h.0.ln_1.bias", "transformer.h.0", "ln_1"),
        ("transformer.h.11.attn.c_proj.weight", "transformer.h.11", "attn.c_proj"),
        ("transformer.h.11.mlp.c_proj.weight", "transformer.h.11", "mlp.c_proj"),
        (
            "bert.encoder.layer.3.attention.output.dense.weight",
            "bert.encoder.layer.3",
            "attention.output.dense",
        ),
        ("encoder.block.0.layer.1.DenseReluDense.wi.weight", "encoder.block.0", "wi"),
        ("model.layers.0.mlp.experts.3.w1.weight", "model.layers.0", "w1"),
        ("model.layers.0.block_sparse_moe.experts.11.w1.weight", "model.layers.0", "w1"),
        ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0", "gate_up_proj"),
        ("model.layers.0.mlp.experts.weight", "model.layers.0", "experts"),
        ("layers.0.self_attn.in_proj_weight", "layers.0", "self_attn"),
        ("backbone.layers.1.mixer.A_log", "backbone.layers.1", "mixer"),
        ("layer1.0.conv1.weight", "layer1.0", "conv1"),
        ("layer1.0.downsample.0.weight", "layer1.0", "downsample.0"),
        ("layers.0.blocks.1.attn.qkv.weight", "layers.0.blocks.1", "qkv"),
        ("blocks.2.1.conv_pw.weight", "blocks.2.1", "conv_pw"),
        ("features.1.0.block.0.0.weight", "features.1.0", "block.0.0"),
        ("encoder.layers.encoder_layer_3.mlp.0.weight", "encoder.layers.encoder_layer_3", "mlp.0"),
        ("visual.transformer.resblocks.2.mlp.c_fc.weight", "visual.transformer.resblocks.2", "c_fc"),
        ("hidden_layers.2.weight", "hidden_layers.2", "hidden_layers"),
        (
            "convnext.encoder.stages.0.layers.0.layer_scale",
            "convnext.encoder.stages.0.layers.0",
            "layer_scale",
        ),
    ],
)
def test_blocks_and_components(name: str, layer: str, component: str) -> None:
    found = resolve(name)
    assert (found.layer, found.component, found.recognised) == (layer, component, True)


@pytest.mark.parametrize(
    ("name", "layer", "component"),
    [
        ("lm_head.weight", "lm_head", "lm_head"),
        ("fc1.bias", "fc1", "fc1"),
        ("0.weight", "0", "0"),
        ("features.0.weight", "features.0", "features.0"),
        ("weight", ROOT, "weight"),
        ("cls_token", ROOT, "cls_token"),
        ("module.cls_token", ROOT, "cls_token"),
        (
            "swin.encoder.layers.0.downsample.reduction.weight",
            "swin.encoder.layers.0.downsample.reduction",
            "reduction",
        ),
        ("head.parametrizations.weight.original1", "head", "head"),
        ("head.parametrizations.weight.0.scale", "head", "head"),
        ("base_model.head.weight", "base_model.head", "head"),
        ("lstm.weight_ih_l0", "lstm.l0", "lstm"),
        ("lstm.bias_hh_l11_reverse", "lstm.l11", "lstm"),
        ("encoder.rnn.weight_hr_l1", "encoder.rnn.l1", "rnn"),
        ("lstm.parametrizations.weight_hh_l1.original0", "lstm.l1", "lstm"),
        ("weight_ih_l0", "l0", "weight_ih_l0"),
        ("cell.weight_ih", "cell", "cell"),
    ],
)
def test_outside_blocks(name: str, layer: str, component: str) -> None:
    found = resolve(name)
    assert (found.layer, found.component, found.index, found.recognised) == (layer, component, None, False)


@pytest.mark.parametrize(
    "name",
    [
        "module.transformer.h.1.ln_1.weight",
        "_orig_mod.module.transformer.h.1.ln_1.weight",
        "module._orig_mod.transformer.h.1.ln_1.weight",
        "transformer.h.1._orig_mod.ln_1.weight",
        "transformer.h.1._checkpoint_wrapped_module.ln_1.weight",
        "_fsdp_wrapped_module.transformer.h.1._fsdp_wrapped_module.ln_1.weight",
        "module.base_model.model.transformer.h.1.ln_1.weight",
        "base_model.model.transformer.h.1.ln_1.base_layer.weight",
        "base_model.model.transformer.h.1.ln_1.original_module.weight",
        "base_model.model.transformer.h.1.ln_1.modules_to_save.default.weight",
        "transformer.h.1.ln_1.parametrizations.weight.original0",
    ],
)
def test_wrappers_leave_no_trace(name: str) -> None:
    found = resolve(name)
    assert found.name == name
    assert found.clean == "transformer.h.1.ln_1.weight"
    assert (found.layer, found.index, found.component) == ("transformer.h.1", 1, "ln_1")


def test_wrapping_changes_no_layer() -> None:
    plain = gpt2()
    expected = [resolve(name).layer for name, _ in plain.named_parameters()]
    compiled: Any = torch.compile(plain)
    for wrapped in (compiled, nn.DataParallel(plain)):
        assert [resolve(name).layer for name, _ in wrapped.named_parameters()] == expected


def test_parametrized_module() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    assert {resolve(name).clean for name, _ in model.named_parameters()} == {"0.weight", "0.bias"}


TARGETS = ["q_proj", "v_proj"]
ADAPTERS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "lora": (lambda: peft.LoraConfig(r=2, target_modules=TARGETS), {"lora_A", "lora_B"}),
    "dora": (
        lambda: peft.LoraConfig(r=2, target_modules=TARGETS, use_dora=True),
        {"lora_A", "lora_B", "lora_magnitude_vector"},
    ),
    "ia3": (lambda: peft.IA3Config(target_modules=TARGETS, feedforward_modules=[]), {"ia3_l"}),
    "vera": (lambda: peft.VeraConfig(r=2, target_modules=TARGETS), {"vera_lambda_b", "vera_lambda_d"}),
    "adalora": (
        lambda: peft.AdaLoraConfig(init_r=3, target_r=2, total_step=10, target_modules=TARGETS),
        {"lora_A", "lora_B", "lora_E", "ranknum"},
    ),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_belong_to_the_module_that_they_adapt(kind: str) -> None:
    config, parts = ADAPTERS[kind]
    base = llama()
    layers = {name: resolve(name).layer for name, _ in base.named_parameters()}
    model = peft.get_peft_model(base, config())
    found = [resolve(name) for name, _ in model.named_parameters()]
    adapted = [one for one in found if one.adapter is not None]
    assert {one.adapter for one in adapted} == parts
    assert {one.component for one in adapted} == set(TARGETS)
    assert {one.layer for one in adapted} == {"model.layers.0", "model.layers.1"}
    assert {one.adapter_name for one in adapted} == {"default"}
    assert {one.clean: one.layer for one in found if one.adapter is None} == layers
    for one in adapted:
        model.get_base_model().get_submodule(one.layer)


def test_several_adapters_and_saved_modules() -> None:
    config = peft.LoraConfig(r=2, target_modules=TARGETS, modules_to_save=["lm_head"])
    model = peft.get_peft_model(llama(), config)
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=TARGETS))
    found = [resolve(name) for name, _ in model.named_parameters()]
    lora = [one for one in found if one.adapter == "lora_A"]
    assert [one.adapter_name for one in lora] == ["default", "other"] * 4
    heads = [one for one in found if one.layer == "lm_head"]
    assert {one.adapter for one in heads} == {None, "modules_to_save"}
    assert {one.clean for one in heads} == {"lm_head.weight"}


def test_every_adapter_part_of_the_installed_peft_is_known() -> None:
    from peft.tuners.tuners_utils import BaseTunerLayer

    parts: set[str] = set()
    for module in pkgutil.walk_packages(peft.tuners.__path__, "peft.tuners."):
        if module.name.rpartition(".")[2] in ("bnb", "gptq", "awq", "aqlm", "eetq", "hqq"):
            continue  # need libraries that are not there
        loaded = importlib.import_module(module.name)
        for _, kind in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(kind, BaseTunerLayer):
                parts.update(kind.adapter_layer_names)
    assert len(parts) > 20
    unknown = [p for p in parts if resolve(f"model.layers.0.mlp.up.{p}.default.weight").adapter != p]
    assert unknown == []


def test_groups_come_in_the_order_of_the_model() -> None:
    names = [name for name, _ in gpt2(12).named_parameters()]
    by_layer = group_parameters(names, "layer")
    wanted = [
        "transformer.wte",
        "transformer.wpe",
        *(f"transformer.h.{i}" for i in range(12)),
        "transformer.ln_f",
    ]
    assert list(by_layer) == wanted
    assert sorted(wanted[2:14], key=natural_key) == wanted[2:14]
    assert sorted(i for members in by_layer.values() for i in members) == list(range(len(names)))
    assert len(group_parameters(names, "component")["c_attn"]) == 24
    assert list(group_parameters(names, "adapter")) == [BASE]
    with pytest.raises(ValueError, match="by must be"):
        group_parameters(names, "block")  # type: ignore[arg-type]


def test_optimizer_groups_by_identity() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 1))
    stranger = nn.Parameter(torch.zeros(2))
    groups: list[dict[str, Any]] = [
        {"params": [model[1].weight]},
        {"params": [model[0].weight, stranger], "name": "backbone"},
        {"params": [model[0].bias], "name": "backbone"},
        {"params": [model[2].weight], "name": "group_0"},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    found = optimizer_groups(optimizer.param_groups, model.named_parameters())
    assert found.groups == {"group_0": [2], "backbone": [0], "backbone_2": [1], "group_0_3": [4]}
    assert found.unassigned == [3, 5]


def test_no_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        resolve("")


WORDS = """module base_model model layers layer h blocks 0 1 12 experts lora_A default weight parametrizations
original0 modules_to_save base_layer token_adapter _orig_mod downsample prompt_encoder x"""


@given(st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=8))
def test_any_name_has_a_layer_and_a_component(parts: list[str]) -> None:
    found = resolve(".".join(parts))
    assert found.layer
    assert found.component
    assert found.clean
    assert found.recognised == (found.index is not None)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_layer_of_a_recurrent_module_is_one(kind: Any, bidirectional: bool) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "rnn": kind(3, 4, 3, bidirectional=bidirectional)})
    names = [name for name, _ in model.named_parameters()]
    groups = group_parameters(names, "layer")
    assert {layer: len(members) for layer, members in groups.items()} == {
        "embed": 1, **{f"rnn.l{i}": 4 * (1 + bidirectional) for i in range(3)},
    }  # fmt: skip
    assert list(group_parameters(names, "component")) == ["embed", "rnn"]
    assert resolve("blocks.0.rnn.weight_ih_l1").layer == "blocks.0"
    assert {resolve(name).module for name in names} == {"embed", "rnn"}


def test_two_networks_share_no_component() -> None:
    """As in a GAN; parts of blocks are the same part in all of them, which is what a component is."""

    def network(out: int) -> nn.ModuleDict:
        main = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, out))
        return nn.ModuleDict({"main": main, "fc": nn.Linear(2, 2)})

    model = nn.ModuleDict({"generator": network(2), "discriminator": network(1), "head": nn.Linear(1, 1)})
    groups = group_parameters([name for name, _ in model.named_parameters()], "component")
    own = ["main.0", "main.2", "fc"]
    assert list(groups) == [*(f"generator.{c}" for c in own), *(f"discriminator.{c}" for c in own), "head"]
    assert {len(members) for members in groups.values()} == {2}
    blocks = ["model.layers.0.norm.weight", "model.layers.1.norm.weight", "model.norm.weight"]
    assert group_parameters(blocks, "component") == {"norm": [0, 1], "model.norm": [2]}
