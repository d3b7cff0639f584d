"""Inputs and targets that part in the middle of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from findings.made_training import MadeTraining, falling, flat

TEN = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10, "predicted_majority": 0.3}


def run(losses: list[float], spread: Any = 1.0, **calls: Any) -> MadeTraining:
    right = lambda step: 0.8 if losses[step - 1] < 1 else 0.1  # noqa: E731
    made = MadeTraining().train(losses).objective(len(losses), value=losses, objective_accuracy=right, **TEN)
    return made.inputs(len(losses), output_spread=spread, output_rms=1.0, input_std=1.0).calls(len(losses), **calls)


PARTED = [*falling(100, end=0.5), *flat(200, level=2.35)]


def test_labels_that_stay_behind_from_a_step_on() -> None:
    finding = run(PARTED).alarms[0]
    assert (finding.kind, finding.cause, finding.since) == ("labels_unrelated", True, 101)
    assert "diverging" in [inside.kind for inside in finding.taken_in]


def test_a_model_that_broke_is_another_matter() -> None:
    found = run(PARTED, spread=lambda step: 1.0 if step <= 100 else 1e-6).alarms
    assert not any("no longer belong" in one.title for one in found)


def test_weights_that_were_replaced_are_another_matter() -> None:
    found = run(PARTED, weights_written=lambda step: step == 110).alarms
    assert found[0].kind == "state_reset"


def test_a_loss_that_comes_back() -> None:
    back = [*falling(100, end=0.5), *flat(40, level=2.35), *falling(160, end=0.3)]
    assert not any("no longer belong" in one.title for one in run(back).alarms)


def test_a_slow_rise() -> None:
    rising = np.concatenate([falling(100, end=0.5), np.linspace(0.5, 2.35, 100), flat(100, level=2.35)]).tolist()
    assert not any("no longer belong" in one.title for one in run(rising).alarms)
