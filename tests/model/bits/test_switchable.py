"""Models that set their own precision get their own back, whatever it is made of."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnscope.model.bits.quantise import quantised
from learnscope.model.bits.quantised_units import UnitsError
from learnscope.model.guard import guard
from learnscope.tensor.bits.quantize import Scheme, fake_quantize


@dataclass
class Settings:
    bits: dict[str, int] = field(default_factory=lambda: {"attn": 8, "mlp": 8})


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = nn.Linear(6, 6), nn.Linear(6, 6)
        self.settings, self.attn_bits, self.mlp_bits = Settings(), 8, 8
        self.history: list[int] = [8]
        self.register_buffer("levels", torch.tensor(8.0))
        self.spare: Tensor = torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        attention = fake_quantize(self.attn.weight, self.attn_bits)
        x = x + nn.functional.linear(x, attention, self.attn.bias).relu()
        found: Tensor = x + nn.functional.linear(x, fake_quantize(self.mlp.weight, self.mlp_bits), self.mlp.bias)
        return found


class Switchable(nn.Module):
    """Keeps its bits in attributes, in an object, in a list, in a buffer, and has no getter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.calls: list[tuple[int, int, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def set_precision(self, layer: int, attn_bits: int, mlp_bits: int) -> None:
        block: Any = self.layers[layer]
        block.attn_bits, block.mlp_bits = attn_bits, mlp_bits
        block.settings.bits["attn"] = attn_bits
        block.history.append(attn_bits)
        block.levels.fill_(attn_bits)
        block.spare = torch.zeros(3)
        block.extra = "new"
        self.calls.append((layer, attn_bits, mlp_bits))


class Destructive(Switchable):
    """Writes its weights in place, gives one new memory, and puts another module into its place."""

    def set_precision(self, layer: int, attn_bits: int, mlp_bits: int) -> None:
        block: Any = self.layers[layer]
        with torch.no_grad():
            block.attn.weight.copy_(fake_quantize(block.attn.weight, attn_bits))
        block.attn.bias.data = torch.zeros(6)
        block.mlp.weight = nn.Parameter(fake_quantize(block.mlp.weight, mlp_bits))
        block.mlp = nn.Linear(6, 6)
        block.attn_bits = attn_bits


def state(model: nn.Module) -> Any:
    """Everything about a model in a form that can be compared, with the identity of its tensors and modules."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        found[path] = id(module)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                bits = tensor.detach().clone().view(torch.int32).tolist()
                found[f"{path}.{name}"] = (id(tensor), tensor.data_ptr(), bits, tensor._version)
        plain = {k: v for k, v in vars(module).items() if isinstance(v, int | list | str | Settings)}
        found[f"{path}/plain"] = copy.deepcopy(plain)
        if isinstance(module, Block):
            found[f"{path}/spare"] = (id(module.spare), module.spare.tolist())
    return found


X = torch.linspace(-1, 1, 24).reshape(4, 6)


@pytest.mark.parametrize("kind", [Switchable, Destructive])
def test_its_own_precision_is_back(kind: type[Switchable]) -> None:
    torch.manual_seed(0)
    model = kind()
    before, answer = state(model), model(X).detach()
    with guard(model), quantised(model, {"layers.0.attn": 2, "layers.0.mlp": 3, "layers.1.mlp": 4}):
        assert not torch.equal(model(X), answer)
        assert state(model) != before
    assert state(model) == before
    assert torch.equal(model(X), answer)
    with pytest.raises(ZeroDivisionError), guard(model), quantised(model, {"layers.1.attn": 2, "layers.1.mlp": 2}):
        raise ZeroDivisionError
    assert state(model) == before


def test_it_is_told_the_bits_of_each_layer() -> None:
    model = Switchable()
    with quantised(model, {"layers.1.mlp": 4, "layers.0.attn": 2, "layers.0.mlp": 3}):
        assert model.calls == [(0, 2, 3), (1, 32, 4)]  # 32: what it cannot be asked about is as stored
        assert model.layers[0].attn_bits == 2
    assert model.calls == []


def test_its_outputs_are_its_own_quantisers() -> None:
    """The weights themselves are not rounded by anyone else."""
    model = Switchable()
    kept = model.layers[0].attn.weight.detach().clone()  # type: ignore[union-attr]
    with quantised(model, {"layers.0.attn": 2, "layers.0.mlp": 2}, Scheme(symmetric=True, granularity="tensor")):
        assert torch.equal(model.layers[0].attn.weight, kept)  # type: ignore[union-attr, arg-type]


def test_a_part_that_is_not_named_stays_as_it_is_where_that_can_be_said() -> None:
    class TakesNone(Switchable):
        def set_precision(self, layer: int, attn_bits: int | None = None, mlp_bits: int | None = None) -> None:  # type: ignore[override]
            self.calls.append((layer, attn_bits, mlp_bits))  # type: ignore[arg-type]

    class Tells(Switchable):
        def get_precision(self, layer: int) -> dict[str, int]:
            block: Any = self.layers[layer]
            return {"attn_bits": block.attn_bits, "mlp_bits": block.mlp_bits}

    for kind, told in ((TakesNone, (1, 4, None)), (Tells, (1, 4, 8))):
        model = kind()
        with quantised(model, {"layers.1.attn": 4}):
            assert model.calls == [told]


def test_an_object_beside_the_model_can_set_its_precision() -> None:
    class Beside:
        __slots__ = ("bits", "model")

        def __init__(self, model: nn.Module) -> None:
            self.model, self.bits = model, {0: 8, 1: 8}

        def set_precision(self, layer: int, *, attn_bits: int, mlp_bits: int) -> None:
            self.bits[layer] = attn_bits
            block: Any = self.model.get_submodule(f"layers.{layer}")
            block.attn.weight.data = fake_quantize(block.attn.weight, attn_bits)

    torch.manual_seed(1)
    encoder: Any = nn.Module()
    encoder.layers = nn.ModuleList(Block() for _ in range(2))
    before = state(encoder)
    beside = Beside(encoder)
    with guard(encoder), quantised(encoder, {"layers.0.attn": 2, "layers.0.mlp": 8}, switch=beside):
        assert beside.bits == {0: 2, 1: 8}
        assert len(encoder.layers[0].attn.weight[0].unique()) <= 4
    assert beside.bits == {0: 8, 1: 8}
    assert state(encoder) == before


def test_what_it_cannot_set_is_refused() -> None:
    model = Switchable()
    model.head = nn.Linear(6, 2)
    before = state(model)
    with pytest.raises(UnitsError, match="head: a model that sets its own precision does so for the attention and MLP"):
        with quantised(model, {"head": 4}):
            pass
    with pytest.raises(UnitsError, match="activation_bits"):
        with quantised(model, {"layers.0.attn": 4}, activation_bits=8):
            pass
    with pytest.raises(UnitsError, match=r"switch: object has no method set_precision"):
        with quantised(model, {"layers.0.attn": 4}, switch=object()):
            pass
    assert state(model) == before
