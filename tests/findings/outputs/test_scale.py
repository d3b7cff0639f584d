"""Scales that are wrong before the first step, and losses that are maximised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling, flat
from learnscope.findings import find

TEN = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10}


def wild(**inputs: Any) -> MadeTraining:
    losses = falling(start=60.0, end=3.0, noise=0.5)
    run = MadeTraining().train(losses).objective(300, value=losses, objective_accuracy=0.3, **TEN)
    return run.inputs(300, **inputs) if inputs else run


def test_a_wild_start() -> None:
    [finding] = wild(input_std=1.0, input_max=3.0, output_rms=80.0).alarms
    assert (finding.kind, finding.cause, finding.since) == ("exploding_initialisation", True, 1)
    assert "before any step its loss is 26.1 times what guessing gives" in finding.title
    assert "root mean square of 80" in finding.detail
    assert "Unscaled inputs: their standard deviation is 1." in finding.ruled_out


def test_a_wild_start_that_was_overcome_is_information() -> None:
    losses = falling(start=60.0, end=0.1, noise=0.02)
    run = MadeTraining().train(losses).objective(300, value=losses, objective_accuracy=0.97, **TEN)
    [finding] = find(run.reader)
    assert (finding.kind, finding.severity) == ("exploding_initialisation", "info")


def test_inputs_that_are_not_scaled() -> None:
    [finding] = wild(input_std=80.0, input_max=255.0, first_output_rms=40.0).alarms
    assert (finding.kind, finding.cause) == ("unscaled_inputs", True)
    assert "standard deviation 80, up to 255" in finding.title
    assert "The first loss was 26" in finding.detail


def test_inputs_that_are_not_scaled_and_do_no_harm() -> None:
    run = MadeTraining().train(falling()).objective(300, value=falling(), objective_accuracy=0.97, **TEN)
    [finding] = find(run.inputs(300, input_std=80.0, input_max=255.0).reader)
    assert (finding.kind, finding.severity) == ("unscaled_inputs", "info")


def test_raw_targets_are_no_wild_start() -> None:
    losses = falling(start=26_000.0, end=3000.0, noise=200.0)
    run = MadeTraining().train(losses)
    run.objective(300, "mse_loss", value=losses, constant_loss=5900.0, target_mean=150.0, target_std=77.0,
                  output_mean=120.0, output_std=50.0)  # fmt: skip
    assert run.alarms == []


def test_a_sum_is_no_fault_by_itself() -> None:
    losses = [32 * loss for loss in falling()]
    run = MadeTraining().train(losses).objective(300, reduction="sum", value=losses, objective_accuracy=0.9, **TEN)
    [finding] = find(run.reader)
    assert (finding.kind, finding.severity) == ("summed_loss", "info")
    assert 'reduction="sum"): 32 times the loss of one' in finding.title


def test_a_sum_explains_steps_that_are_too_large() -> None:
    losses = [32 * 2.3 * math.exp(step / 60) for step in range(200)]
    run = MadeTraining("SGD").train(losses, rate=0.1, update=0.6, gradient=400.0)
    [finding] = run.objective(200, reduction="sum", value=losses, objective_accuracy=0.1, **TEN).alarms
    assert (finding.kind, finding.severity) == ("summed_loss", "critical")
    assert "learning_rate_too_high" in [inside.kind for inside in finding.taken_in]


def rising(n: int = 300) -> list[float]:
    return (2.3 * np.exp(np.arange(n) / 100) + 0.02 * np.random.default_rng(0).standard_normal(n)).tolist()


def test_maximize_in_the_optimizer() -> None:
    [finding] = MadeTraining("Adam", maximize=True).train(rising()).alarms
    assert (finding.kind, finding.severity, finding.cause, finding.since) == ("loss_maximised", "critical", True, 1)
    assert "maximize=True" in finding.detail
    assert "diverging" in [inside.kind for inside in finding.taken_in]
    assert any("learning rate" in sentence for sentence in finding.ruled_out)


def test_a_minus_in_front_of_the_loss() -> None:
    losses = rising()
    run = MadeTraining().train([-loss for loss in losses])
    [finding] = run.objective(300, value=losses, objective_accuracy=0.0, **TEN).alarms
    assert finding.kind == "loss_maximised"
    assert "minus what the loss function returned" in finding.detail


def test_small_steps_uphill() -> None:
    losses = rising()
    run = MadeTraining().train(losses, update=1e-3).objective(300, value=losses, objective_accuracy=0.0, **TEN)
    [finding] = run.alarms
    assert finding.kind == "loss_maximised"
    assert "fewer than by guessing (10 %)" in finding.detail


def test_large_steps_are_not_said_to_go_uphill() -> None:
    run = MadeTraining("SGD").train(rising(), rate=1.0, update=0.7, gradient=30.0)
    assert run.kinds == ["learning_rate_too_high"]


@pytest.mark.parametrize("maximize", [True, False])
def test_a_reward_that_is_maximised_falls_or_stays(maximize: bool) -> None:
    assert MadeTraining(maximize=maximize).train(falling()).alarms == []
    assert MadeTraining(maximize=maximize).train(flat(level=0.0, noise=0.3)).alarms == []


def test_a_likelihood_below_zero_is_sound() -> None:
    assert MadeTraining().train(falling(start=500.0, end=-3000.0, noise=20.0)).alarms == []


def test_a_sum_is_no_cause_where_steps_are_bounded_or_it_is_divided() -> None:
    losses = [32 * 2.3 * math.exp(step / 60) for step in range(200)]
    run = MadeTraining("Adam").train(losses, rate=0.1, update=0.6, gradient=400.0)
    assert "summed_loss" not in run.objective(200, reduction="sum", value=losses, objective_accuracy=0.1, **TEN).kinds
    other = [loss / 32 + 0.01 * step for step, loss in enumerate(losses)]
    run = MadeTraining("SGD").train(other, rate=0.1, update=0.6, gradient=400.0)
    run.objective(200, reduction="sum", value=losses, objective_accuracy=0.1, **TEN)
    assert "summed_loss" not in [finding.kind for finding in find(run.reader)]


def bounded(full: float) -> MadeTraining:
    losses = falling(start=9.0, end=7.5, noise=0.2)
    run = MadeTraining().train(losses)
    return run.objective(300, "l1_loss", value=losses, constant_loss=9.0, target_mean=0.5, target_std=9.0,
                         output_mean=0.1, output_std=lambda step: full * min(1.0, step / 100))  # fmt: skip


def test_targets_beyond_both_ends_of_a_tanh() -> None:
    [finding] = bounded(0.993).alarms
    assert (finding.kind, finding.cause) == ("targets_out_of_range", True)
    assert "outputs stay at −1 and 1" in finding.title
    assert bounded(5.0).alarms == []
    assert bounded(0.7).alarms == []
