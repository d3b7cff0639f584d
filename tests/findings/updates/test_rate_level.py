"""Learning rates of 0, too low and too high, and what is no fault of theirs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling, flat
from learnscope.findings import find
from learnscope.record import Column, Table


def test_zero_throughout() -> None:
    [finding] = MadeTraining().train(flat(), rate=0.0, update=0.0).alarms
    assert (finding.kind, finding.severity, finding.cause) == ("learning_rate_zero", "critical", True)
    assert finding.title == "The learning rate is 0 throughout: nothing is trained"
    assert "all 30 measurements, steps 10 to 300. The weights did not change in 30 measurements." in finding.detail
    assert finding.ruled_out == ["Gradients arrive: ‖g‖ is 0.5 (median of 30 measurements)."]
    assert finding.evidence.n == 30


def test_zero_from_a_step_on() -> None:
    losses = [*falling(100), *flat(200, level=0.2)]
    run = MadeTraining().train(losses, rate=lambda step: 1e-3 * (step <= 100), update=lambda step: 1e-3 * (step <= 100))
    [finding] = run.alarms
    assert (finding.kind, finding.severity, finding.since) == ("learning_rate_zero", "warning", 110)
    assert "Before, at step 100, it was 0.001." in finding.detail


@pytest.mark.parametrize("name", ["ends at 0", "begins at 0", "cycles"])
def test_schedules_that_pass_through_zero(name: str) -> None:
    rates = {
        "ends at 0": lambda step: 1e-3 * math.cos(math.pi * step / 600) ** 2 if step < 290 else 0.0,
        "begins at 0": lambda step: 1e-3 * max(step - 20, 0) / 280,
        "cycles": lambda step: 1e-3 * abs(math.sin(math.pi * step / 100)) * (step % 100 > 0),
    }
    rate = rates[name]
    assert MadeTraining().train(falling(), rate=rate, update=rate).alarms == []


def test_another_rate_than_the_recorded_one_may_move_the_weights() -> None:
    assert MadeTraining().train(falling(), rate=0.0, update=1e-3).alarms == []


def test_a_group_at_zero_explains_what_does_not_move() -> None:
    run = MadeTraining().train(falling())
    for step in range(10, 301, 10):
        table = Table("group", ["body", "head"], [Column("learning_rate", [0.0, 1e-3])])
        run.write("LearningRate_2", step, [table], phase="before_step")
    [finding] = [finding for finding in find(run.reader) if finding.kind == "learning_rate_zero"]
    assert (finding.severity, finding.scopes, finding.explains) == ("info", ["body"], ["not_moving"])


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_too_low(optimizer: str) -> None:
    run = MadeTraining(optimizer).train(flat(), rate=1e-7, update=1e-6)
    [finding] = run.alarms
    assert (finding.kind, finding.severity, finding.cause) == ("learning_rate_too_low", "warning", True)
    # 300 steps of ‖Δ‖ = 1e-6·10 against ‖g‖ = 0.5
    assert "could change the loss by at most 0.0015 (‖Δ‖‖g‖)" in finding.detail
    assert "about 1,000 times" in finding.advice


def test_low_rates_that_do_something() -> None:
    assert MadeTraining().train(falling(end=2.2, noise=0.01), rate=1e-6, update=1e-5).alarms == []
    assert MadeTraining().train(flat(), rate=1e-5, update=5e-5).alarms == []


def test_a_small_gradient_is_not_the_rates_fault() -> None:
    assert "learning_rate_too_low" not in MadeTraining().train(flat(), update=1e-6, gradient=1e-5).kinds


def jumping(n: int = 300) -> list[float]:
    draw = np.random.default_rng(0)
    losses = 3.5 + 0.5 * np.exp(-np.arange(n) / 50) + 0.05 * draw.standard_normal(n)
    losses[:12] = [4.2, 20, 70, 60, 45, 30, 20, 15, 10, 8, 6, 5]
    return losses.tolist()


def test_too_high_with_a_jump_that_comes_back() -> None:
    run = MadeTraining("AdamW").train(jumping(), rate=1.0, update=lambda step: 12.0 if step <= 10 else 0.01)
    [finding] = run.alarms
    assert (finding.kind, finding.severity, finding.cause) == ("learning_rate_too_high", "warning", True)
    assert finding.title == "The learning rate is too high: a step moves the weights by 12 times their norm"
    assert "The loss jumped from 4.2 to 70 at step 3 and was back at step" in finding.detail
    assert finding.since is not None
    assert finding.since <= 10
    # what guessing would reach is not known
    assert "before any update; the first loss was 4.2" in finding.alternatives[0]


def test_a_jump_with_small_steps_is_not_the_rates_fault() -> None:
    assert "learning_rate_too_high" not in MadeTraining().train(jumping(), update=1e-4).kinds


def test_large_steps_that_do_no_harm() -> None:
    assert MadeTraining().train(falling(), update=lambda step: 2.0 if step <= 10 else 0.01).alarms == []


def test_too_high_takes_in_the_divergence() -> None:
    losses = [2.3 * math.exp(step / 40) + 0.01 * (step % 5) for step in range(200)]
    run = MadeTraining("SGD").train(losses, rate=0.5, update=0.6, gradient=30.0)
    [finding] = run.alarms
    assert (finding.kind, finding.severity) == ("learning_rate_too_high", "critical")
    assert "diverging" in [inside.kind for inside in finding.taken_in]


def test_a_start_that_is_high_already_is_not_the_rates_fault() -> None:
    losses = [40.0 + 0.3 * step + 0.1 * (step % 5) for step in range(300)]
    run = MadeTraining("SGD").train(losses, rate=0.5, update=0.6, gradient=30.0)
    run.objective(300, value=losses, target_entropy=2.3, majority_share=0.1, classes=10, objective_accuracy=0.1)
    assert "learning_rate_too_high" not in run.kinds


def test_a_schedule_that_ends_after_a_few_batches() -> None:
    losses = [*np.linspace(2.3, 2.2, 30), *flat(270, level=2.2)]
    rate = lambda step: 1e-3 * 0.8**step  # noqa: E731
    run = MadeTraining().train(losses, rate=rate, update=rate)
    [finding] = run.alarms
    assert (finding.kind, finding.cause) == ("learning_rate_too_low", True)
    assert finding.since == 40  # a hundredth of the first recorded rate, that of step 10
    assert "The learning rate fell to next to nothing by step 40" in finding.title


def test_a_schedule_that_ends_low_when_all_is_learned() -> None:
    rate = lambda step: 1e-3 * 0.96**step  # noqa: E731
    assert MadeTraining().train(falling(), rate=rate, update=rate).alarms == []


@pytest.mark.parametrize("known", [True, False])
def test_a_loss_that_never_comes_back_to_its_first_value(known: bool) -> None:
    """Said only of a loss that guessing would be better at: the loss of a policy may rise from any value."""
    draw = np.random.default_rng(0)
    losses = [3.6, *(20 - np.arange(149) / 10 + 3 * draw.standard_normal(149)).clip(4)]
    run = MadeTraining("AdamW").train(losses, rate=3.0, update=lambda step: 2.0 if step <= 10 else 0.1, gradient=100.0)
    if known:
        run.objective(150, value=losses, majority_share=0.2, target_entropy=2.9, classes=40, objective_accuracy=0.1)
    assert run.kinds == (["learning_rate_too_high"] if known else [])


def test_a_rate_that_goes_below_zero() -> None:
    losses = [*falling(120, end=0.5), *np.linspace(0.5, 9.0, 180).tolist()]
    [finding] = MadeTraining().train(losses, rate=lambda step: 1e-3 * (1 - step / 120)).alarms
    assert (finding.kind, finding.severity, finding.since) == ("loss_maximised", "critical", 130)
    assert "below 0 from step 130 on" in finding.title
    assert "max(0, …)" in finding.advice


def cut_early(gradient: float = 0.5, late: float = 0.175) -> MadeTraining:
    """To a thousandth by step 30; what steps could do since is an eighth of the loss, and it did not fall."""
    losses = [*np.linspace(0.27, 0.18, 30), *flat(270, level=late, noise=0.003)]
    low = lambda step: 1.0 if step <= 30 else 1e-3  # noqa: E731
    run = MadeTraining().train(
        losses, rate=lambda step: 3e-3 * low(step), update=lambda step: 0.015 * low(step),
        gradient=lambda step: 0.5 if step <= 30 else gradient,
    )  # fmt: skip
    return run.objective(300, "mse_loss", value=losses, constant_loss=0.14, target_mean=0.3, target_std=0.37,
                         output_mean=0.3, output_std=0.1)  # fmt: skip


def test_a_rate_that_fell_away_when_the_loss_stopped_unlearned() -> None:
    [finding] = cut_early().alarms
    assert (finding.kind, finding.cause, finding.since) == ("learning_rate_too_low", True, 40)


def test_a_rate_that_fell_after_the_gradient_or_with_something_learned() -> None:
    assert "learning_rate_too_low" not in cut_early(gradient=0.05).kinds
    assert "learning_rate_too_low" not in cut_early(late=0.1).kinds


def test_a_first_step_that_throws_the_loss_up_and_a_way_back_to_chance() -> None:
    """The loss has come down from where the steps had put it, and never below its first value."""
    losses = [2.28, *np.linspace(2.9, 2.4, 9), *flat(190, level=2.33, noise=0.02)]
    run = MadeTraining("AdamW").train(losses, rate=0.1, update=lambda step: 1.0 if step == 10 else 3e-3, gradient=0.5)
    run.objective(200, value=losses, objective_accuracy=0.1, majority_share=0.11, target_entropy=2.3, classes=10,
                  classes_seen=10, predicted_majority=0.4)  # fmt: skip
    [finding] = [one for one in run.alarms if one.cause]
    assert finding.kind == "learning_rate_too_high"
