"""Exchanged weights are back bit for bit, whatever happens in between."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.weights import swap
from learnscope.model.weights.swap import exchange, swapped


def raw(tensor: Tensor) -> list[int]:
    return tensor.detach().contiguous().view(torch.uint8).flatten().tolist()


def awkward(dtype: torch.dtype) -> Tensor:
    """NaNs with payloads, signed zeros, infinities, denormals: every pattern of bits is kept."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**15), 2**15, (6, 10), generator=generator).to(kind)
    bits[0, :4] = torch.tensor([0, -1, 1, torch.iinfo(kind).min], dtype=kind)
    tensor = bits.view(dtype).clone()
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0], dtype=dtype)
    tensor[1, :4] = special
    return tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_twice_is_as_before(dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "CHUNK", chunk)
    a, b = awkward(dtype), torch.randn(6, 10).to(dtype)
    bits_a, bits_b = raw(a), raw(b)
    exchange(a, b)
    assert (raw(a), raw(b)) == (bits_b, bits_a)
    exchange(a, b)
    assert (raw(a), raw(b)) == (bits_a, bits_b)


def test_tensors_that_are_not_contiguous() -> None:
    base = torch.arange(40.0).view(5, 8)
    a, b = base[:, ::2].t(), torch.randn(4, 5)
    rest = base[:, 1::2].clone()
    before, other = a.clone(), b.clone()
    exchange(a, b)
    assert torch.equal(a, other)
    assert torch.equal(b, before)
    assert torch.equal(base[:, 1::2], rest), "what lies between is not touched"


def test_empty_and_single_entries() -> None:
    for shape in ((0, 3), (), (1,)):
        a, b = torch.full(shape, 1.0), torch.full(shape, 2.0)
        exchange(a, b)
        assert torch.equal(a, torch.full(shape, 2.0))
        assert torch.equal(b, torch.full(shape, 1.0))


def test_what_does_not_agree_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot exchange \(2,\).*\(3,\)"):
        exchange(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match=r"float32 with \(2,\) torch.float64"):
        exchange(torch.zeros(2), torch.zeros(2, dtype=torch.float64))


def make() -> tuple[nn.Module, dict[str, Tensor]]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model, {name: torch.zeros_like(p) for name, p in model.named_parameters()}


def test_the_model_runs_with_the_other_weights() -> None:
    model, zeros = make()
    x = torch.randn(5, 3)
    before = model(x)
    state = {name: raw(p) for name, p in model.named_parameters()}
    with swapped(model, zeros):
        assert float(model(x).abs().max()) == 0.0
        assert {name: raw(value) for name, value in zeros.items()} == state, "they hold the model's own meanwhile"
    assert torch.equal(model(x), before)
    assert all(float(value.abs().max()) == 0.0 for value in zeros.values())


def test_back_after_an_error() -> None:
    model, zeros = make()
    state = {name: raw(p) for name, p in model.named_parameters()}
    with pytest.raises(KeyboardInterrupt), swapped(model, zeros):
        raise KeyboardInterrupt
    assert {name: raw(p) for name, p in model.named_parameters()} == state


def test_back_after_a_refusal_half_way() -> None:
    model, zeros = make()
    zeros["2.bias"] = torch.zeros(7)
    state = {name: raw(p) for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match="cannot exchange"), swapped(model, zeros):
        raise AssertionError("never reached")
    assert {name: raw(p) for name, p in model.named_parameters()} == state
    assert all(float(value.abs().max()) == 0.0 for value in zeros.values())


def test_an_unknown_name_is_refused_before_anything_moves() -> None:
    model, zeros = make()
    state = {name: raw(p) for name, p in model.named_parameters()}
    with (
        pytest.raises(KeyError, match=r"no parameter '2\.wieght' \(1 such"),
        swapped(model, {**zeros, "2.wieght": torch.zeros(1)}),
    ):
        raise AssertionError("never reached")
    assert {name: raw(p) for name, p in model.named_parameters()} == state


def test_a_pending_backward_survives_with_the_right_gradients() -> None:
    model, zeros = make()
    x = torch.randn(5, 3)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    loss = model(x).square().sum()
    with swapped(model, zeros), torch.no_grad():
        model(x)
    loss.backward()
    got = [p.grad for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True) if b is not None)


def test_inside_autocast_the_other_weights_are_the_ones_that_run() -> None:
    model, zeros = make()
    x = torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x)
        with swapped(model, zeros), torch.no_grad():
            assert float(model(x).abs().max()) == 0.0
        assert torch.equal(model(x), before)
