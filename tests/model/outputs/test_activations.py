"""Activations computed in fewer operations: the same numbers but for rounding, and nothing left behind."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import activations

from learnscope.model.guard import guard
from learnscope.model.outputs.activations import (
    PIECE,
    FusedActivations,
    fused_activations,
    is_own_forward,
    tanh_gelu,
)
from learnscope.model.outputs.suffix import Suffix

SLOW = {
    "new": lambda: activations.NewGELUActivation(),
    "accurate": lambda: activations.AccurateGELUActivation(),
    "fast": lambda: activations.FastGELUActivation(),
    "tanh": lambda: activations.GELUTanh(use_gelu_tanh_python=True),
    "erf": lambda: activations.GELUActivation(use_gelu_python=True),
}
OTHERS = {
    "gelu": lambda: activations.GELUActivation(),
    "torch's tanh": lambda: activations.GELUTanh(),
    "quick": lambda: activations.QuickGELUActivation(),
    "silu": lambda: activations.SiLUActivation(),
    "torch's own": lambda: nn.GELU(),
}


def values(dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = torch.linspace(-12, 12, 2001, dtype=torch.float64)
    return torch.cat([drawn, 3 * drawn, spread, 1e-6 * drawn, torch.tensor([0.0, -0.0, 50.0, -50.0])]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SLOW)
def test_each_entry_is_the_same_but_for_the_rounding_of_its_input(name: str, dtype: torch.dtype) -> None:
    module, x = SLOW[name](), values(dtype)
    stock = module(x)
    with fused_activations(module):
        found = module(x)
        assert torch.equal(module(x), found), "each time the same"
    room = 3 * torch.finfo(dtype).eps * x.abs()
    assert bool(((found - stock).abs() <= room).all())
    assert bool(((found - module(x.double())).abs() <= room).all())
    assert torch.equal(module(x), stock)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SLOW)
def test_in_half_precision_the_rounding_after_each_operation_stays(name: str, dtype: torch.dtype) -> None:
    module, x = SLOW[name](), values(dtype)
    stock = module(x)
    with fused_activations(module):
        assert torch.equal(module(x), stock)


def test_inside_autocast_it_stays_too() -> None:
    module, x = activations.NewGELUActivation(), values(torch.float32)
    stock = module(x)
    with fused_activations(module), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(x), stock)


def test_what_is_not_finite_and_what_is_huge() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-40, -1e-40])
    assert torch.equal(tanh_gelu(x).nan_to_num(7), activations.NewGELUActivation()(x).nan_to_num(7))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (PIECE + 3,), (2, PIECE // 2 + 1)])
def test_any_number_of_entries(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert tanh_gelu(x).shape == x.shape
    assert torch.allclose(tanh_gelu(x), activations.NewGELUActivation()(x), rtol=1e-5, atol=1e-6)


def test_entries_with_gaps_between_them() -> None:
    x = torch.randn(6, 8)[:, ::2].t()
    assert torch.equal(tanh_gelu(x), tanh_gelu(x.contiguous()))


def test_values_are_the_same_with_a_gradient_and_its_gradient_is_right() -> None:
    x = values(torch.float64).requires_grad_()
    stock = activations.NewGELUActivation()(x)
    found = tanh_gelu(x)
    assert torch.equal(found.detach(), tanh_gelu(x.detach()))
    weights = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    [own], [other] = (torch.autograd.grad(y, x, weights) for y in (found, stock))
    assert torch.allclose(own, other, rtol=1e-12, atol=1e-12)
    few = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(tanh_gelu, few)
    assert torch.autograd.gradgradcheck(tanh_gelu, few)


@pytest.mark.parametrize("name", OTHERS)
def test_other_activations_are_left_alone(name: str) -> None:
    assert not FusedActivations.of(OTHERS[name]()).found


def test_an_activation_that_somebody_changed_is_left_alone() -> None:
    class Derived(activations.NewGELUActivation):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    patched = activations.NewGELUActivation()
    vars(patched)["forward"] = torch.relu
    other_act = activations.GELUTanh(use_gelu_tanh_python=True)
    other_act.act = torch.relu
    for module in (Derived(), patched, other_act):
        stock = module(values(torch.float32))
        assert not FusedActivations.of(module).found
        with fused_activations(module):
            assert torch.equal(module(values(torch.float32)), stock)
    assert vars(patched)["forward"] is torch.relu


def test_a_class_that_somebody_changed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations.NewGELUActivation, "forward", lambda self, input: input)
    assert not FusedActivations.of(activations.NewGELUActivation()).found


def tiny_gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=16, vocab_size=40)
    build: Any = transformers.GPT2LMHeadModel
    model: nn.Module = build(config).eval()
    return model


def test_a_model_is_as_it_was_also_after_an_error() -> None:
    model = tiny_gpt2()
    before = [dict(vars(module)) for module in model.modules()]
    stock = model(torch.arange(8)[None]).logits

    def boom(*_: Any) -> None:
        raise RuntimeError("in a hook")

    handle = model.transformer.h[1].mlp.act.register_forward_hook(boom)  # type: ignore[union-attr, index]
    with pytest.raises(RuntimeError, match="in a hook"), guard(model), fused_activations(model):
        model(torch.arange(8)[None])
    handle.remove()
    assert [dict(vars(module)) for module in model.modules()] == before
    with fused_activations(model):
        inside = model(torch.arange(8)[None]).logits
        with fused_activations(model):
            assert torch.equal(model(torch.arange(8)[None]).logits, inside)
        assert torch.equal(model(torch.arange(8)[None]).logits, inside), "one inside another takes nothing away"
        assert torch.equal(copy.deepcopy(model)(torch.arange(8)[None]).logits, inside)
    assert [dict(vars(module)) for module in model.modules()] == before
    assert torch.equal(model(torch.arange(8)[None]).logits, stock)
    assert not torch.equal(inside, stock), "it was another computation"
    assert torch.allclose(inside, stock, rtol=1e-4, atol=1e-6)


def test_hooks_of_an_activation_still_run() -> None:
    model, seen = tiny_gpt2(), list[Tensor]()
    act = model.transformer.h[0].mlp.act  # type: ignore[union-attr, index]
    act.register_forward_hook(lambda _module, _args, output: seen.append(output))  # type: ignore[union-attr, arg-type]
    with fused_activations(model):
        model(torch.arange(8)[None])
    assert len(seen) == 1


def test_blocks_of_a_model_are_still_known_to_leave_no_state_behind() -> None:
    model = tiny_gpt2()
    with torch.no_grad(), fused_activations(model):
        assert all(map(is_own_forward, model.modules()))
        suffix = Suffix(model)
        suffix.record(lambda batch: model(batch).logits, [torch.arange(8)[None]])
        assert suffix.is_known()
    vars(model.transformer.h[0].mlp)["forward"] = lambda x: x  # type: ignore[union-attr, index]
    assert not Suffix(model).is_known()
