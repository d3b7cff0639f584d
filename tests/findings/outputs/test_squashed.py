"""Softmax over the batch, and a sigmoid of a sigmoid."""

from __future__ import annotations

from findings.made_training import MadeTraining, falling, flat

YES = {"majority_share": 0.7, "target_entropy": 0.6, "classes": 2, "classes_seen": 2}


def test_softmax_over_the_batch() -> None:
    losses = flat(level=1.9)
    run = MadeTraining().train(losses)
    run.objective(300, "nll_loss", value=losses, logprob_rows=0.0, batch_softmax_columns=1.0, classes=3, classes_seen=3)
    [finding] = run.alarms
    assert (finding.kind, finding.cause, finding.since) == ("double_softmax", True, 10)
    assert finding.title.startswith("Softmax is taken over the batch")
    assert finding.title.endswith("not over the classes")
    assert "dim=1" in finding.advice


def test_a_batch_whose_columns_add_up_by_chance() -> None:
    run = MadeTraining().train(falling())
    run.objective(300, value=falling(), batch_softmax_columns=lambda step: float(step == 10), objective_accuracy=0.9)
    assert run.alarms == []


def test_a_sigmoid_of_a_sigmoid() -> None:
    losses = flat(level=0.69)
    run = MadeTraining().train(losses)
    [finding] = run.objective(300, "binary_cross_entropy", value=losses, twice_squashed=1.0, **YES).alarms
    assert (finding.kind, finding.cause) == ("double_softmax", True)
    assert "between 0.5 and 0.731" in finding.title
    assert "ReLU" in finding.alternatives[0]


def test_probabilities_that_are_near_a_half_at_first() -> None:
    """As those of a model that has learned nothing yet, or that most answers are yes."""
    run = MadeTraining().train(falling(start=0.69))
    run.objective(
        300, "binary_cross_entropy", value=falling(start=0.69), **YES, objective_accuracy=0.95,
        twice_squashed=lambda step: 0.6 if step == 10 else 1.0,
    )  # fmt: skip
    assert run.alarms == []
    few = MadeTraining().train(flat(40, level=0.69))
    assert few.objective(40, "binary_cross_entropy", value=flat(40, level=0.69), twice_squashed=1.0, **YES).alarms == []
