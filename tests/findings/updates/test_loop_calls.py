"""Calls of the loop in the wrong order, twice, or not at all, as findings."""

from __future__ import annotations

import pytest

from findings.made_training import MadeTraining, falling, flat
from learnscope.findings import find


def test_a_sound_loop() -> None:
    run = MadeTraining().train(falling()).calls(300, uncleared_steps=0, cleared_steps=0, state_resets=0, rate_changes=1)
    assert find(run.reader) == []


@pytest.mark.parametrize(
    ("count", "kind", "severity"),
    [
        ("uncleared_steps", "gradients_not_cleared", "critical"),
        ("cleared_steps", "gradients_cleared_early", "critical"),
        ("steps_without_backward", "steps_without_backward", "critical"),
        ("backwards_without_step", "backward_without_step", "warning"),
        ("eval_mode_steps", "eval_mode_training", "warning"),
    ],
)
def test_all_steps(count: str, kind: str, severity: str) -> None:
    run = MadeTraining().train(falling())
    run.calls(300, **{count: lambda step: 10 if step > 20 else 0})
    [finding] = run.alarms
    assert (finding.kind, finding.severity, finding.cause, finding.since) == (kind, severity, True, 30)
    assert (finding.evidence.n, finding.evidence.value) == (300, 280.0)
    assert "93.3 %" in finding.title
    assert finding.detail.startswith("280 of 300 ")


@pytest.mark.parametrize("count", ["uncleared_steps", "cleared_steps", "steps_without_backward", "eval_mode_steps"])
def test_a_single_step_is_left_in_peace(count: str) -> None:
    assert find(MadeTraining().train(falling()).calls(300, **{count: lambda step: step == 30}).reader) == []


def test_half_of_the_backwards_may_be_for_the_inputs() -> None:
    run = MadeTraining().train(falling()).calls(300, backwards=20, backwards_without_step=10)
    assert find(run.reader) == []


def test_gradients_that_are_not_cleared_take_in_what_they_lead_to() -> None:
    losses = [2.3 * 1.02**step + 0.01 * (step % 5) for step in range(200)]
    run = MadeTraining("SGD").train(losses, rate=0.5, update=0.6, gradient=30.0)
    [finding] = run.calls(200, uncleared_steps=10).alarms
    assert finding.kind == "gradients_not_cleared"
    assert "learning_rate_too_high" in [inside.kind for inside in finding.taken_in]


def test_steps_that_do_nothing() -> None:
    run = MadeTraining().train(flat(), update=1e-7).calls(300, cleared_steps=10)
    [finding] = run.alarms
    assert finding.kind == "gradients_cleared_early"
    assert [inside.kind for inside in finding.taken_in] == ["learning_rate_too_low"]


def test_modules_in_eval_mode_are_named() -> None:
    run = MadeTraining().train(falling())
    for step in range(10, 301, 10):
        from learnscope.record import Column, Table

        columns = [Column("steps", [10]), Column("eval_mode_steps", [10])]
        notes = {"eval_modules": ["second.drop"]}
        run.write("LoopCalls", step, [Table("model", ["model"], columns)], notes=notes)
    [finding] = run.alarms
    assert finding.scopes == ["second.drop"]
    assert finding.detail.endswith("running statistics: second.drop.")


def test_evaluations_in_training_mode() -> None:
    run = MadeTraining().train(falling()).calls(300, train_mode_evaluations=lambda step: 4 * (step % 50 == 0))
    [finding] = run.alarms
    assert (finding.kind, finding.since) == ("dropout_in_evaluation", 50)
    assert finding.title.startswith("24 evaluations ran")


def test_batch_norms_renewed_at_the_end() -> None:
    run = MadeTraining().train(falling()).calls(300, train_mode_evaluations=lambda step: 40 * (step == 300))
    assert find(run.reader) == []


def test_a_state_that_began_again() -> None:
    [finding] = MadeTraining().train(falling()).calls(300, state_resets=lambda step: step == 110).alarms
    assert (finding.kind, finding.since, finding.evidence.value) == ("state_reset", 110, 1)
    assert "once, first at or before step 110" in finding.title


def test_a_schedule_stepped_twice() -> None:
    [finding] = MadeTraining().train(falling()).calls(300, scheduler_steps=20, rate_changes=2).alarms
    assert finding.kind == "schedule_twice"
    assert finding.title == "The learning rate schedule is stepped 2 times a step"
    assert find(MadeTraining().train(falling()).calls(300, scheduler_steps=11, rate_changes=2).reader) == []
