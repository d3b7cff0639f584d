"""Clipping to almost nothing, and weight decay that outweighs the loss."""

from __future__ import annotations

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling, flat
from learnscope.findings import find


def test_clipping_with_sgd_stops_training() -> None:
    run = MadeTraining("SGD").train(flat(), rate=0.1, update=5e-6, gradient=0.35, clip=3.5e-4)
    [finding] = run.alarms
    assert (finding.kind, finding.cause, finding.since) == ("clipped_hard", True, 10)
    assert finding.title == "Clipping leaves 0.1 % of the gradient at 100 % of the steps"
    assert "‖g‖ is 0.35 before the clip and 3.5e-04 after it (medians of 30 measurements" in finding.detail
    assert finding.evidence.value == pytest.approx(1e-3)


def test_clipping_with_adam_is_harmless() -> None:
    run = MadeTraining("Adam", eps=1e-8).train(falling(), gradient=0.35, clip=3.5e-4)
    [finding] = find(run.reader)
    assert (finding.kind, finding.severity, finding.cause) == ("clipped_hard", "info", False)


def test_clipping_below_epsilon_is_not() -> None:
    run = MadeTraining("Adam", eps=1e-8).train(flat(), update=1e-6, gradient=0.35, clip=3.5e-7)
    [finding] = run.alarms
    assert finding.kind == "clipped_hard"
    assert "ε" in finding.detail


def test_usual_clipping() -> None:
    assert find(MadeTraining("SGD").train(falling(), gradient=3.0, clip=1.0).reader) == []


def test_hard_clipping_with_a_rate_to_match() -> None:
    assert find(MadeTraining("SGD").train(falling(), rate=300.0, gradient=0.35, clip=1e-3).reader) == []


def shrinking(step: int) -> float:
    return 10.0 * 0.98 ** min(step, 200)


@pytest.mark.parametrize(("optimizer", "update"), [("AdamW", 0.02), ("SGD", 0.02)])
def test_decay_that_outweighs_the_loss(optimizer: str, update: float) -> None:
    run = MadeTraining(optimizer).train(flat(), rate=1e-3, update=update, weight=shrinking, decay=20.0)
    [finding] = run.alarms
    assert (finding.kind, finding.cause) == ("weight_decay_too_strong", True)
    assert finding.title.startswith("Weight decay of 20 outweighs the loss: ‖W‖ went from 8.17 to 0.176")
    assert "Decay takes 2 % of the weights a step" in finding.detail
    assert "not the learning rate" in finding.advice


def test_decay_by_the_gradient_of_adam() -> None:
    run = MadeTraining("Adam").train(flat(), rate=1e-3, update=0.02, weight=shrinking, decay=20.0, gradient=0.1)
    [finding] = run.alarms
    assert finding.kind == "weight_decay_too_strong"
    assert "times the gradient ‖g‖" in finding.detail


def test_usual_decay() -> None:
    for optimizer in ("AdamW", "Adam", "SGD"):
        assert find(MadeTraining(optimizer).train(falling(), decay=0.1).reader) == []


def test_weights_that_shrink_while_the_loss_falls() -> None:
    """As with weight normalisation or a long fine-tuning: decay is a small part of what happens."""
    losses = np.array(falling())
    assert find(MadeTraining("AdamW").train(losses, update=0.01, weight=shrinking, decay=0.1).reader) == []
