"""Adapters on weights that bitsandbytes has quantised, on the CPU."""

from __future__ import annotations

from typing import Any

import bitsandbytes as bnb
import peft
import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from seeds.tiny import language_model, token_batches

RANK, ALPHA = 4, 6
TARGETS = ["q_proj", "down_proj"]
SCOPES = [f"model.layers.{i}.{name}" for i in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj")]


def quantised(bits: int) -> Any:
    """A tiny Llama whose linear layers, the head apart, hold 4-bit NF4 or 8-bit weights."""
    torch.manual_seed(1)
    model = language_model(hidden_size=64, intermediate_size=128)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head":
                setattr(module, name, _packed(child, bits))
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = bits == 4, bits == 8
    return model


def _packed(linear: nn.Linear, bits: int) -> nn.Module:
    sizes = linear.in_features, linear.out_features
    if bits == 4:
        packed = bnb.nn.Linear4bit(*sizes, bias=False, quant_type="nf4", compute_dtype=torch.float32)
        packed.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
    else:
        packed = bnb.nn.Linear8bitLt(*sizes, bias=False, has_fp16_weights=False)
        packed.weight = bnb.nn.Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
    return packed.to("cpu")


def adapted(bits: int, **options: Any) -> tuple[Any, torch.optim.Optimizer]:
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, **options)
    model = peft.get_peft_model(quantised(bits), config)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int = 4) -> None:
    torch.manual_seed(2)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()


def layer_at(model: Any, scope: str) -> Any:
    return model.get_submodule(f"base_model.model.{scope}")


def update(model: Any, scope: str) -> Tensor:
    layer = layer_at(model, scope)
    left, right = layer.lora_B["default"].weight.detach(), layer.lora_A["default"].weight.detach()
    return ALPHA / RANK * left.double() @ right.double()


def unpacked(model: Any, scope: str) -> Tensor:
    """By bitsandbytes' own function for 4 bits, by its formula for 8: row maxima over 127."""
    weight = layer_at(model, scope).get_base_layer().weight
    if hasattr(weight, "quant_state") and weight.quant_state is not None:
        return bnb.functional.dequantize_4bit(weight.data, weight.quant_state).double()
    state = layer_at(model, scope).get_base_layer().state
    scale = weight.SCB if weight.SCB is not None else state.SCB
    return weight.data.double() * scale.double()[:, None] / 127


@pytest.mark.parametrize("bits", [4, 8])
def test_spectra_and_norms_are_those_of_the_update_and_of_the_unpacked_weight(bits: int) -> None:
    model, optimizer = adapted(bits)
    with ls.watch(model, optimizer, probes=[ls.AdapterSpectrum(every=2)], strict=True) as w:
        train(model, optimizer)
    held = w.run.arrays("AdapterSpectrum")
    relative = w.run.frame("AdapterSpectrum", "relative_norm")
    relative = relative[relative.step == 4].set_index("scope")
    for scope in SCOPES:
        change = update(model, scope)
        truth = torch.linalg.svdvals(change)[:RANK]
        found = torch.from_numpy(held[f"singular_values/default/{scope}"])
        assert torch.allclose(found, truth, rtol=1e-5, atol=0)
        share = float(change.norm() / unpacked(model, scope).norm())
        assert relative.value[scope] == pytest.approx(share, rel=1e-3 if bits == 8 else 1e-6)


def test_doras_direction_is_that_of_the_unpacked_weight() -> None:
    model, optimizer = adapted(4, use_dora=True)
    with ls.watch(model, optimizer, probes=[ls.AdapterSpectrum(every=4)], strict=True) as w:
        train(model, optimizer)
    norms = w.run.frame("AdapterSpectrum", "direction_norm").set_index("scope").value
    for scope in SCOPES:
        assert norms[scope] == pytest.approx(float((unpacked(model, scope) + update(model, scope)).norm()), rel=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_watching_changes_nothing_and_lower_ranks_can_be_tried(bits: int) -> None:
    plain, seen = adapted(bits), adapted(bits)
    train(*plain)
    probes = [ls.AdapterSpectrum(every=1), ls.AdapterGradients(every=1), ls.AdapterTruncation()]
    with ls.watch(*seen, probes=probes, holdout=token_batches(2), strict=True) as w:
        train(*seen)
    for (name, a), b in zip(plain[0].named_parameters(), seen[0].parameters(), strict=True):
        assert torch.equal(a, b), name
    ranks = w.run.frame("AdapterTruncation", "recommended_rank", "module")
    assert ranks.value.between(1, RANK).all()


def test_a_start_from_packed_weights_is_refused_by_name() -> None:
    model, _ = adapted(4)
    with pytest.raises(ls.AdapterError, match=r"Params4bit .*before quantising"):
        ls.init_milora(model)
