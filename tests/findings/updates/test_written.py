"""Weights that are replaced in the middle of a run."""

from __future__ import annotations

import numpy as np

from findings.made_training import MadeTraining, falling


def jumps(at: int = 200, to: float = 2.0) -> list[float]:
    losses = np.array(falling())
    losses[at:] += to
    return losses.tolist()


def test_an_old_checkpoint_is_loaded() -> None:
    run = MadeTraining().train(jumps()).calls(300, weights_written=lambda step: step == 210)
    finding = run.alarms[0]
    assert (finding.kind, finding.cause, finding.since) == ("state_reset", True, 201)
    assert "diverging" in [inside.kind for inside in finding.taken_in]


def test_weights_that_are_written_without_harm() -> None:
    assert MadeTraining().train(falling()).calls(300, weights_written=lambda step: step == 210).alarms == []


def test_a_loop_that_writes_them_at_every_step() -> None:
    kinds = MadeTraining().train(jumps()).calls(300, weights_written=10).kinds
    assert "state_reset" not in kinds


def test_a_jump_elsewhere_is_not_the_writes() -> None:
    kinds = MadeTraining().train(jumps()).calls(300, weights_written=lambda step: step == 100).kinds
    assert "state_reset" not in kinds
