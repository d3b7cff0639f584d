"""A model that is rebuilt while it trains: one measurement is left out, and the next is of the model as it is then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import learnscope as ls

REBUILT_AT, STEPS = 4, 8


def grow(model: nn.Sequential) -> None:
    model.append(nn.Linear(3, 3))


def shrink(model: nn.Sequential) -> None:
    del model[1]


def widen(model: nn.Sequential) -> None:
    model[0], model[1] = nn.Linear(4, 7), nn.Linear(7, 3)


@pytest.mark.parametrize("rebuild", [grow, shrink, widen])
def test_the_change_is_measured_again_after_one_measurement(rebuild: Callable[[nn.Sequential], None]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth: dict[int, float] = {}
    with pytest.warns(ls.ProbeWarning, match="the model was rebuilt; its next change is measured from here") as told:
        with ls.watch(model, optimizer, probes=[ls.ParameterChange(every=1)]) as w:
            for step in range(1, STEPS + 1):
                if step == REBUILT_AT:
                    rebuild(model)
                    del optimizer.param_groups[0]["params"][:]
                    optimizer.param_groups[0]["params"].extend(model.parameters())
                before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
                optimizer.zero_grad()
                model(torch.randn(5, 4)).square().mean().backward()
                optimizer.step()
                squares = [(p.detach().double() - before[n]).square().sum() for n, p in model.named_parameters()]
                truth[step] = float(sum(squares)) ** 0.5
    assert len([each for each in told if issubclass(each.category, ls.ProbeWarning)]) == 1
    del truth[REBUILT_AT]
    frame = w.run.frame()
    found = frame[(frame["name"] == "l2") & (frame["scope"] == "model")].dropna(subset="value")
    assert dict(zip(found["step"], found["value"], strict=True)) == pytest.approx(truth, rel=1e-6)
