"""Targets far from 1 that outputs are still on their way to, and starts that only look wild beside them."""

from __future__ import annotations

import numpy as np
import pytest

from findings.made_training import MadeTraining, flat
from learnscope.findings.updates.too_high import starts_high


def regression(losses: list[float], mean: float, width: float, reached: float, grows: bool = True) -> MadeTraining:
    outputs = lambda step: reached * (step / 300 if grows else 1.0)  # noqa: E731
    return MadeTraining().train(losses).objective(
        300, "mse_loss", value=losses, target_mean=mean, target_std=width, constant_loss=width**2,
        output_mean=outputs, output_std=0.01,
    )  # fmt: skip


def test_outputs_on_their_way_to_targets_that_are_not_scaled() -> None:
    [finding] = regression(flat(level=3.8e6, noise=1e4), 1950.0, 30.0, 40.0).alarms
    assert (finding.kind, finding.cause) == ("targets_out_of_range", True)
    assert "1,950" in finding.title
    assert "bias of the last layer" in finding.advice


@pytest.mark.parametrize(("level", "mean", "reached", "grows"), [
    (0.9, 1950.0, 1949.0, True),  # there
    (3.8e6, 1950.0, 40.0, False),  # not on their way
    (4.0, 2.0, 0.3, True),  # not large
])  # fmt: skip
def test_outputs_that_are_there_or_do_not_move_or_small_targets(
    level: float, mean: float, reached: float, grows: bool
) -> None:
    found = regression(flat(level=level, noise=0.01 * level), mean, 1.0, reached, grows).kinds
    assert "targets_out_of_range" not in found


def test_the_loss_of_outputs_of_0_is_no_wild_start() -> None:
    """Targets of 10 ± 1: outputs of 0 have a loss of 101, a hundred times that of the best constant."""
    assert starts_high(regression(flat(level=100.0, noise=1.0), 10.0, 1.0, 0.1).reader) is None
    assert starts_high(regression(flat(level=900.0, noise=1.0), 10.0, 1.0, 0.1).reader) == pytest.approx(8.9, rel=0.05)


def test_a_loss_that_was_thrown_far_away_by_one_step() -> None:
    """With losses so uneven afterwards that no rise can be told."""
    draw = np.random.default_rng(0)
    losses = [1.6, 1200.0, 6800.0, 900.0, 30.0, 2.0, *np.exp(draw.normal(2, 1.5, 294))]
    run = MadeTraining("SGD").train(losses, update=lambda step: 5.0 if step == 10 else 1e-3, gradient=50.0)
    run.objective(300, "mse_loss", value=losses, target_mean=1.0, target_std=0.4, constant_loss=0.16)
    [finding] = [one for one in run.alarms if one.cause]
    assert finding.kind == "learning_rate_too_high"
    assert "6,800 at step 3" in finding.detail


def late_to_arrive(arrives: int, spread: float, end: float = 8.5e4) -> MadeTraining:
    """Targets of 950 ± 300; outputs come to their mean at a step, and the loss with them."""
    level = lambda step: 950.0 * min(step / arrives, 1.0)  # noqa: E731
    draw = np.random.default_rng(0)
    losses = [end + (950 - level(step)) ** 2 + 5e3 * draw.standard_normal() for step in range(1, 301)]
    return MadeTraining().train(losses).objective(
        300, "mse_loss", value=losses, target_mean=950.0, target_std=300.0, constant_loss=9e4, output_mean=level,
        output_std=spread,
    )  # fmt: skip


def test_outputs_that_spent_the_run_on_the_way_to_the_mean() -> None:
    [finding] = late_to_arrive(200, 30.0).alarms
    assert (finding.kind, finding.cause) == ("targets_out_of_range", True)
    assert "950 ± 300" in finding.title


@pytest.mark.parametrize(("arrives", "spread", "end"), [(20, 30.0, 8.5e4), (200, 280.0, 8.5e4), (200, 30.0, 1e4)])
def test_outputs_that_were_there_soon_or_tell_examples_apart(arrives: int, spread: float, end: float) -> None:
    assert "targets_out_of_range" not in late_to_arrive(arrives, spread, end).kinds
