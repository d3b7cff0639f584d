"""A holdout whose targets are others than those of training."""

from __future__ import annotations

import numpy as np

from findings.made_training import MadeTraining, falling
from learnscope.record import Column, Table


def run(mean: float, std: float = 1.0, held_loss: float = 0.2) -> MadeTraining:
    losses = falling(start=1.0, end=0.2, noise=0.01)
    made = MadeTraining().train(losses)
    made.objective(300, "mse_loss", value=losses, target_mean=0.0, target_std=1.0, constant_loss=1.0,
                   output_mean=0.0, output_std=0.9)  # fmt: skip
    labels = mean + std * np.random.default_rng(0).standard_normal(400)
    for step in (1, 100, 200, 300):
        columns = [Column("holdout_examples", [400]), Column("holdout_loss", [held_loss + 1 / step])]
        made.write("Holdout", step, [Table("model", ["model"], columns)], arrays={"labels": labels})
    return made


def test_the_last_quarter_of_a_sorted_file() -> None:
    [finding] = run(2.0).alarms
    assert (finding.kind, finding.cause) == ("holdout_differs", True)
    assert "targets are others" in finding.title


def test_targets_that_were_filled_in() -> None:
    kinds = run(0.7, std=0.4, held_loss=0.34).kinds
    assert kinds == ["holdout_differs"]


def test_a_holdout_that_differs_somewhat_and_is_predicted_well() -> None:
    assert run(0.7).alarms == []


def test_a_narrow_holdout_alone_is_no_fault() -> None:
    assert "holdout_differs" not in run(0.0, std=0.4, held_loss=0.1).kinds
