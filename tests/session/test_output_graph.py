"""What models' outputs come from, and what backward passes bring to them, as the default probes record it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import learnscope as ls
from probes.reference import values


class Listed(nn.Module):
    """A layer that is in a list, and so not the model's."""

    def __init__(self, hold: type) -> None:
        super().__init__()
        self.layers, self.head = hold([nn.Linear(5, 4)]), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers[0](x).relu())


class Carried(nn.Module):
    """A state that goes from call to call."""

    def __init__(self, passed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cell, self.head, self.passed = nn.GRUCell(1, 4), nn.Linear(4, 1), passed

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 4)
        for column in x.unbind(1):
            h = self.cell(column[:, None], self.passed(h))
        return self.head(h)


def watched(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], *, outside: bool = False) -> ls.Run:
    torch.manual_seed(0)
    held = [*model.parameters(), *(model.layers[0].parameters() if outside else ())]
    optimizer = torch.optim.SGD(held, lr=0.01)
    with ls.watch(model, optimizer, probes=[ls.Inputs(every=1)], strict=True) as w:
        for _ in range(5):
            value = loss(model(torch.randn(16, 5)), torch.randn(16))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            w.log(loss=value)
    return w.run


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs.squeeze(1), targets)


def test_parameters_outside_of_the_model() -> None:
    assert values(watched(Listed(list), right), "Inputs", "outside_parameters") == [24.0, 24.0]
    assert values(watched(Listed(nn.ModuleList), right), "Inputs", "outside_parameters") == [0.0, 0.0]


def test_parameters_that_the_optimizer_has_all_the_same() -> None:
    assert values(watched(Listed(list), right, outside=True), "Inputs", "outside_parameters") == [0.0, 0.0]


def test_what_comes_before_the_model_is_not_its_part() -> None:
    before, model = nn.Linear(5, 5), nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ls.watch(model, optimizer, probes=[ls.Inputs(every=1)], strict=True) as w:
        for _ in range(3):
            optimizer.zero_grad()
            model(before(torch.randn(16, 5))).square().mean().backward()
            optimizer.step()
    assert not len(w.run.frame("Inputs").query("name == 'outside_parameters'"))


def test_a_state_that_is_detached_at_every_call() -> None:
    run = watched(Carried(Tensor.detach), right)
    assert values(run, "Inputs", "lost_calls") == [pytest.approx(0.8)] * 2
    assert [record.notes.get("lost_calls") for record in run.records("Inputs")][:2] == [["cell"]] * 2
    assert values(watched(Carried(lambda h: h), right), "Inputs", "lost_calls") == [0.0, 0.0]


@pytest.mark.parametrize("power", [1, 2, 4])
def test_outputs_and_targets_that_are_broadcast(power: int) -> None:
    run = watched(Listed(nn.ModuleList), lambda a, b: (a - b).abs().pow(power).mean())
    assert values(run, "Inputs", "gradient_disorder") == [0.0] * 4
    run = watched(Listed(nn.ModuleList), lambda a, b: (a.squeeze(1) - b).abs().pow(power).mean())
    assert min(values(run, "Inputs", "gradient_disorder")) > 0.1


def test_a_gradient_that_is_the_same_for_all_has_no_order() -> None:
    frame = watched(Listed(nn.ModuleList), lambda a, _: a.mean()).frame("Inputs")
    assert frame[frame["name"] == "gradient_disorder"]["value"].isna().all()
