"""A loss by hand that asks for the wrong thing."""

from __future__ import annotations

import numpy as np

from findings.made_training import MadeTraining, falling
from learnscope.record import Column, Table


def run(right: float, loss: float) -> MadeTraining:
    made = MadeTraining().train(falling(start=0.02, end=0.001, noise=1e-4))
    for step in (1, 75, 150, 225, 300):
        columns = [
            Column("holdout_examples", [400]),
            Column("holdout_accuracy", [0.1 if step == 1 else right]),
            Column("holdout_loss", [2.3 if step == 1 else loss], {"loss": "cross-entropy"}),
        ]
        made.write("Holdout", step, [Table("model", ["model"], columns)], arrays={"labels": np.arange(400) % 10})
    return made


def test_fewer_right_than_by_guessing() -> None:
    finding = run(0.0, 12.0).alarms[0]
    assert (finding.kind, finding.cause) == ("loss_maximised", True)


def test_more_right_than_by_guessing() -> None:
    assert "loss_maximised" not in run(0.9, 0.4).kinds


def test_as_many_as_by_guessing() -> None:
    assert "loss_maximised" not in run(0.09, 3.0).kinds
