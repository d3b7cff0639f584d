"""A model's structure is recognised without walking it, and every way to change it is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from learnscope.model.structure import Structure


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"a": nn.Linear(3, 3)}), nn.ReLU())


def rename(net: nn.Module) -> None:
    children = net[1]._modules
    children["b"] = children.pop("a")


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "a parameter replaced": lambda net: setattr(net[0], "weight", nn.Parameter(torch.ones(3, 3))),
    "a parameter removed": lambda net: net[0].register_parameter("bias", None),
    "a parameter added": lambda net: net[2].register_parameter("slope", nn.Parameter(torch.ones(1))),
    "a module replaced": lambda net: net.__setitem__(2, nn.GELU()),
    "a module added": lambda net: net.append(nn.ReLU()),
    "a module added below": lambda net: net[1].update({"b": nn.Linear(3, 3)}),
    "a module renamed": rename,
    "a module moved to where there was none": lambda net: net[2].add_module("a", net[1].pop("a")),
    "a module removed": lambda net: net.__delitem__(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str) -> None:
    net = model()
    structure = Structure(net)
    assert structure.holds()
    CHANGES[change](net)
    assert not structure.holds()
    assert Structure(net).holds()


def test_training_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    structure = Structure(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    net.requires_grad_(False).eval().double()
    monkeypatch.setattr(nn.Module, "named_modules", None)  # whoever walks the tree fails
    assert structure.holds()
