"""A gradient that is exactly 0 everywhere though the loss is not, and layers that a momentum goes on moving."""

from __future__ import annotations

import pytest

from findings.made_training import LAYERS, MadeTraining, flat
from learnscope.findings import find
from learnscope.record import Column, Table


def run_of(losses: list[float], zero: tuple[str, ...], updates: dict[str, float]) -> MadeTraining:
    """Gradients of 0 in `zero` from step 60 on; `updates` are ‖Δ‖/‖W‖ over ten steps from then on, 0.01 before."""
    run = MadeTraining()
    for step, loss in enumerate(losses, 1):
        run.loss(step, loss)
        if step % 10 == 0:
            run.gradients(step, {layer: 0.0 if layer in zero and step >= 60 else 0.3 for layer in LAYERS}, 10.0)
            sizes = [updates.get(layer, 0.01) if step > 80 else 0.01 for layer in LAYERS]
            tables = [
                Table("model", ["model"], [Column("update_to_weight", [0.01]), Column("l2", [0.1])]),
                Table(
                    "layer", LAYERS, [Column("update_to_weight", sizes), Column("l2", [10 * size for size in sizes])]
                ),
            ]
            run.write("ParameterChange", step, tables, notes={"span": [step - 10, step]})
    return run


def test_a_loss_without_a_slope() -> None:
    [finding] = run_of([1.0] * 20 + flat(180, level=0.4), tuple(LAYERS), {}).alarms
    assert (finding.kind, finding.since) == ("zero_gradients", 60)
    assert "at a loss of 0.4" in finding.title
    assert "−1 and 1" in finding.advice


@pytest.mark.parametrize("level", [0.0, 0.05])
def test_a_loss_that_is_gone_has_no_gradient_either(level: float) -> None:
    assert run_of([1.0] * 20 + [level] * 180, tuple(LAYERS), {}).kinds == []


def test_a_layer_that_stopped_moving_some_steps_after_its_gradient_was_gone() -> None:
    """Half of the run's changes are from before, or from a momentum: those since say whether it still moves."""
    losses = [1.0 - 0.004 * step for step in range(200)]
    still = [f for f in find(run_of(losses, ("first",), {"first": 1e-5}).reader) if f.kind == "zero_gradients"]
    moving = [f for f in find(run_of(losses, ("first",), {"first": 0.009}).reader) if f.kind == "zero_gradients"]
    assert [(finding.severity, list(finding.scopes)) for finding in still] == [("warning", ["first"])]
    assert moving == []
