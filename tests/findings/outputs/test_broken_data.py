"""Data that is handed over broken: named as the cause, with what it explains; sound data gives no finding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import learnscope as ls


def trained(x: Tensor, y: Tensor, steps: int = 120, break_at: int = 0, **options: Any) -> ls.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with ls.watch(model, optimizer, **options) as w:
        for step in range(1, steps + 1):
            rows = torch.randint(len(x), (32,))
            inputs = x[rows]
            if step == break_at:
                inputs[5, 2] = torch.nan
            loss = nn.functional.mse_loss(model(inputs), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    return w.run


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 4, generator=generator)
    return x, (x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 0.1 * torch.randn(400, generator=generator))[:, None]


def alarms(run: ls.Run) -> list[ls.Finding]:
    return [finding for finding in run.findings() if finding.severity != "info"]


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_targets_that_broadcast_explain_a_model_that_learns_the_mean(data: tuple[Tensor, Tensor]) -> None:
    (finding,) = alarms(trained(data[0], data[1][:, 0]))
    assert finding.kind == "targets_broadcast"
    assert finding.cause
    assert finding.evidence.value == 32, "every output with the targets of a batch of 32"
    assert finding.since == 1


def test_an_input_that_is_nan_explains_what_breaks_after_it(data: tuple[Tensor, Tensor]) -> None:
    (finding,) = alarms(trained(*data, break_at=60))
    assert (finding.kind, finding.since, finding.severity) == ("data_not_finite", 60, "critical")
    assert "nonfinite" in [taken.kind for taken in finding.taken_in]


def test_targets_that_are_nan(data: tuple[Tensor, Tensor]) -> None:
    y = data[1].clone()
    y[::7] = torch.nan
    (finding,) = alarms(trained(data[0], y))
    assert finding.kind == "data_not_finite"
    assert "targets" in finding.title


def test_sound_data_is_left_in_peace(data: tuple[Tensor, Tensor]) -> None:
    run = trained(*data)
    assert alarms(run) == []
    states = {check.name: check.state for check in run.checks()}
    assert states["outputs and targets of one shape"] == states["inputs and targets are finite"] == "passed"


def test_a_loss_with_a_minus_in_front_that_breaks_before_it_can_be_followed() -> None:
    """Its last values are not finite, and the loss function's own were seen at few steps."""
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels).float() / 16, torch.tensor(digits)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ls.watch(model, optimizer) as w:
        for _ in range(250):
            rows = torch.randint(len(x), (64,))
            loss = -nn.functional.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
    (finding,) = alarms(w.run)
    assert finding.kind == "loss_maximised"
    assert "minus what the loss function returned" in finding.detail
