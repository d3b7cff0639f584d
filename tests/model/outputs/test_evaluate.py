"""One guarded pass over fixed batches: outputs, features by layer, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from learnscope.model.outputs.evaluate import evaluate, find_layer, gradients
from learnscope.task import TupleTask


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.norm, self.drop, self.head = nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(self.drop(self.norm(x)))


def batches() -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)) for n in (7, 4)]


def test_outputs_and_features_of_named_layers() -> None:
    model = Net().train()
    data = batches()
    found = evaluate(model, TupleTask(), data, ["blocks.1", "norm"])
    assert model.training
    assert not model.norm._forward_hooks
    model.eval()
    x, y = torch.cat([b[0] for b in data]), torch.cat([b[1] for b in data])
    with torch.no_grad():
        hidden = model.blocks[1](torch.tanh(model.blocks[0](x)))
        normed = model.norm(torch.tanh(hidden))
        logits = model.head(normed)
    torch.testing.assert_close(found.features["blocks.1"], hidden)
    torch.testing.assert_close(found.features["norm"], normed)
    torch.testing.assert_close(found.logits, logits)
    torch.testing.assert_close(found.losses, F.cross_entropy(logits, y, reduction="none"))
    assert found.targets is not None
    assert torch.equal(found.targets, y)
    assert found.example.tolist() == list(range(11)), "numbered through all batches"


def test_features_through_a_moment_and_a_compiled_model() -> None:
    model = Net()
    compiled: Any = torch.compile(model, backend="eager")
    seen: list[Tensor] = []

    class Look(ls.Probe):
        needs = frozenset({"features"})

        def measure(self, moment: ls.Moment) -> dict[str, float]:
            seen.append(moment.features("blocks.0")["blocks.0"])
            return {"n": len(seen[-1])}

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(compiled, optimizer, probes=[Look()], holdout=batches(), strict=True):
        optimizer.step()
    torch.testing.assert_close(seen[0], model.blocks[0](torch.cat([b[0] for b in batches()])))


def test_a_wrong_layer_name_suggests_the_right_one() -> None:
    with pytest.raises(KeyError, match=r"no layer 'block\.1'; close names: blocks\.1"):
        find_layer(Net(), "block.1")
    with pytest.raises(KeyError, match="close names: none"):
        find_layer(Net(), "zzzzzz")
    model = Net()
    with pytest.raises(KeyError):
        evaluate(model, TupleTask(), batches(), ["norm", "nowhere"])
    assert not model.norm._forward_hooks


def test_outputs_that_are_tuples_or_dictionaries() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x * 2, None)

    class Named(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return {"hidden": x[0] * 3}

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.named, self.head = Pair(), Named(), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.named(self.pair(x))["hidden"])

    data = batches()
    found = evaluate(Both(), TupleTask(), data, ["pair", "named"])
    x = torch.cat([b[0] for b in data])
    torch.testing.assert_close(found.features["pair"], x * 2)
    torch.testing.assert_close(found.features["named"], x * 6)


def test_gradients_of_a_fixed_batch_do_not_touch_the_loops_own() -> None:
    model = Net().train()
    model.blocks[0].requires_grad_(False)
    x, y = batches()[0]
    F.cross_entropy(model(x), y).backward()
    mine = {name: (p.grad, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}
    statistics = model.norm.running_mean.clone()
    with torch.no_grad():
        found = gradients(model, TupleTask(), (x, y))
    for name, p in model.named_parameters():
        grad, copy = mine[name]
        assert p.grad is grad
        assert copy is None or torch.equal(p.grad, copy)
    assert torch.equal(model.norm.running_mean, statistics)
    assert set(found) == {"blocks.1.weight", "blocks.1.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    model.eval().zero_grad()
    F.cross_entropy(model(x), y).backward()
    for name, g in found.items():
        torch.testing.assert_close(g, model.get_parameter(name).grad)


def test_a_frozen_model_has_nothing_to_differentiate() -> None:
    with pytest.raises(ValueError, match="no parameter of the model requires a gradient"):
        gradients(Net().requires_grad_(False), TupleTask(), batches()[0])


def test_the_model_is_as_it_was_after_a_failure() -> None:
    model = Net().train()
    wrong = (torch.randn(3, 9), torch.zeros(3, dtype=torch.int64))

    def draws(_module: nn.Module, _inputs: Any) -> None:
        torch.randn(3)

    model.drop.register_forward_pre_hook(draws)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        evaluate(model, TupleTask(), [batches()[0], wrong], ["norm"])
    assert all(module.training for module in model.modules())
    assert not model.norm._forward_hooks
    assert torch.equal(state, torch.get_rng_state())
