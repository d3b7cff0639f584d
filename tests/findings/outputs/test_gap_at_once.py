"""Holdouts that were far worse on rows that nobody could have memorised: they differ, or easy rows came first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from findings.made_training import MadeTraining
from learnscope.record import Finding

STAYS = (1.15, 1.0, 0.9, 0.85, 0.82, 0.8, 0.78, 0.77, 0.76, 0.75, 0.75)
"""A holdout that is learned in part, and no more."""


def alarms(held: tuple[float, ...] = STAYS, *, new: int = 60, rises: float = 0.0, fast: float = 12.0) -> list[Finding]:
    """The training loss falls to a tenth within `fast` steps of e; rows come again from step `new` on."""
    steps = np.arange(300)
    losses = 0.1 + np.exp(-steps / fast) + 0.01 * np.random.default_rng(0).standard_normal(300) + rises * (steps > 100)
    run = MadeTraining().train(losses.tolist())
    run.inputs(300, seen_share=lambda step: 0.3 * (step >= new), distinct_rows=500.0, duplicate_share=0.0)
    for step, value in zip((1, 10, 20, 30, 40, 50, 60, 100, 150, 200, 300), held, strict=True):
        run.holdout(step, None, mean=value)
    return run.alarms


def test_a_gap_while_rows_were_new() -> None:
    [finding] = [one for one in alarms() if one.cause]
    assert (finding.kind, finding.since) == ("holdout_differs", 1)
    assert finding.detail.startswith("Up to step 50 no training row that was looked at had come before")
    assert "made from the target" in finding.advice
    assert any("Overfitting" in sentence for sentence in finding.ruled_out)


@pytest.mark.parametrize("options", [
    {"new": 10},  # rows may have been memorised
    {"rises": 0.3},  # easy rows came first
    {"held": (1.15, 1.0, 0.9, 0.85, 0.82, 0.8, 0.6, 0.5, 0.45, 0.42, 0.4)},  # and so the holdout was learned later
    {"held": (1.15, 0.6, 0.4, 0.3, 0.28, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25)},  # it is almost learned
])  # fmt: skip
def test_gaps_that_mean_something_else(options: dict[str, Any]) -> None:
    assert "holdout_differs" not in [finding.kind for finding in alarms(**options)]
