"""One batch that breaks a training, and steps that do."""

from __future__ import annotations

import numpy as np

from findings.made_training import MadeTraining, falling


def broken(*after: float, at: int = 150, update: float = 1e-3, rate: float = 1e-3) -> MadeTraining:
    """`rate` is the learning rate from the break on; before it, 0.001."""
    losses = falling(noise=0.01)
    losses[at - 1 : at - 1 + len(after)] = after
    losses[at - 1 + len(after) :] = [after[-1]] * (301 - at - len(after))
    return MadeTraining("SGD").train(
        losses, update=lambda step: 1e3 if step >= at else update, gradient=lambda step: 1e6 if step >= at else 0.5,
        rate=lambda step: rate if step >= at else 1e-3,
    )  # fmt: skip


def test_a_batch_that_breaks_the_training() -> None:
    [finding] = broken(1e6, 1e9).alarms
    assert (finding.kind, finding.severity, finding.cause, finding.since) == ("bad_batch", "critical", True, 150)
    assert "another order of the data" in finding.alternatives[0]
    assert not finding.ruled_out


def test_inputs_of_that_batch_rule_the_rate_out() -> None:
    run = broken(1e6, 1e9).inputs(300, input_std=1.0, input_max=lambda step: 1e9 if step == 150 else 3.0)
    [finding] = run.alarms
    assert finding.kind == "bad_batch"
    assert "Its inputs reach 1.0e+09, where 3 is usual." in finding.detail
    assert finding.ruled_out
    assert not finding.alternatives


def test_a_loss_that_climbs_to_where_it_breaks_is_of_the_steps() -> None:
    assert "bad_batch" not in broken(4.0, 30.0, 1e5, 1e9).kinds
    assert "bad_batch" not in broken(1e6, 1e9, update=0.5).kinds  # steps were large before


def test_a_rate_that_was_raised_is_the_suspect() -> None:
    kinds = broken(1e6, 1e9, rate=1.0).kinds
    assert "bad_batch" not in kinds
    assert kinds[0] == "learning_rate_too_high"


def test_a_loss_that_is_back_is_not_broken() -> None:
    losses = np.array(falling(noise=0.01))
    losses[149] = 1e6
    [finding] = MadeTraining().train(losses.tolist()).alarms
    assert (finding.kind, finding.severity) == ("bad_batch", "warning")
