"""Findings about steps that never happened, and the examples that they name."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.record import Finding


def trained(
    bad: Collection[int], steps: int = 200, *, scaler: bool = False, skips: bool = True, ids: bool = True,
    stops: bool = False, infinite: bool = False,
) -> ls.Run:  # fmt: skip
    """A training in which some batches have a gradient, or a loss, that is not finite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaling = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaler)
    w = ls.watch(model, optimizer)
    for number in range(1, steps + 1):
        x = torch.randn(8, 4)
        y = (x[:, 0] > 0).long()
        loss = nn.functional.cross_entropy(model(x), y)
        if number in bad:
            loss = loss * torch.inf if infinite else loss + (loss * 0).abs().sqrt()
        if ids:
            w.batch((x, y, torch.arange(8) + 10 * number))
        w.log(loss=loss)
        optimizer.zero_grad()
        scaling.scale(loss).backward()
        norm = torch.ones(())
        if not scaler:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        if stops and not norm.isfinite():
            w.close("interrupted")
            return w.run
        if norm.isfinite() or not skips:
            scaling.step(optimizer)
            scaling.update()
    w.close()
    return w.run


def found(run: ls.Run, kind: str) -> list[Finding]:
    return [finding for finding in run.findings() if finding.kind == kind]


def test_skipped_steps_name_the_tensor_and_the_examples() -> None:
    (finding,) = found(trained({30, 80, 81}), "skipped_steps")
    assert finding.severity == "warning"
    assert (finding.since, list(finding.scopes), finding.evidence.value) == (30, ["2.bias"], 3.0)
    assert finding.title == "3 steps never happened, from step 30: gradients not finite, first in 2.bias"
    assert "The ids of the examples of step 30: 300, 301, 302, 303, 304, 305, 306, 307." in finding.detail
    assert "it began in the backward pass" in finding.detail
    assert not found(trained({30, 80, 81}), "nonfinite")


def test_a_loss_that_is_not_finite_points_to_the_batch() -> None:
    (finding,) = found(trained({30}, infinite=True), "skipped_steps")
    assert "The loss of step 30 was inf, so it began in the forward pass." in finding.detail
    assert "inputs or targets that are not finite" in finding.advice


def test_a_run_that_ends_before_the_step() -> None:
    (finding,) = found(trained({30}, stops=True, ids=False), "skipped_steps")
    assert finding.severity == "critical"
    assert finding.title == "The run ended at step 30: its gradients were not finite, first in 2.bias"
    assert "ids" not in finding.detail


@pytest.mark.parametrize(
    ("bad", "alarm"),
    [
        ((), False),
        (range(1, 9), False),  # it looks for its scale
        ((60, 150), False),
        ((*range(1, 9), 100), False),
        (range(12, 200, 12), True),
        (range(100, 125), True),  # the training has stopped
    ],
)
def test_a_scaler_that_looks_for_its_scale_is_healthy(bad: Collection[int], alarm: bool) -> None:
    assert bool(found(trained(set(bad), scaler=True), "skipped_steps")) == alarm


def test_a_step_that_is_taken_names_its_examples_too() -> None:
    run = trained({30}, steps=60, skips=False)
    (finding,) = found(run, "nonfinite")
    assert not found(run, "skipped_steps")
    assert "The first bad tensor in backward order is 2.bias." in finding.detail
    assert run.rows_of_step(30) == list(range(300, 308))
    assert run.rows_of_step(31) == list(range(310, 318))
    assert run.rows_of_step(20) == []


def test_the_check_is_listed() -> None:
    checks = {check.name: check.state for check in trained(()).checks()}
    assert checks["steps that never happened"] == "passed"
