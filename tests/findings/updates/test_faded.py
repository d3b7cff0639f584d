"""Steps that fade away at a learning rate that stays."""

from __future__ import annotations

from typing import Any

from findings.made_training import MadeTraining, flat

TEN = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10,
       "objective_accuracy": 0.1, "predicted_majority": 0.4}  # fmt: skip


def run(update: Any, gradient: Any = 0.5, **options: Any) -> MadeTraining:
    losses = flat(level=2.3)
    made = MadeTraining("Adagrad", **options).train(losses, update=update, gradient=gradient, weight=10.0)
    return made.objective(300, value=losses, **TEN)


def test_a_decay_inside_of_the_optimizer() -> None:
    [finding] = run(lambda step: 20 / step**3, lr_decay=1).alarms
    assert (finding.kind, finding.cause) == ("learning_rate_too_low", True)
    assert "fade away" in finding.title
    assert "Its lr_decay is 1" in finding.detail
    assert "labels_unrelated" in [inside.kind for inside in finding.taken_in]


def test_steps_that_stay() -> None:
    assert run(1e-3).kinds == ["labels_unrelated"]


def test_gradients_that_fade_with_them_are_another_matter() -> None:
    faded = [one for one in run(lambda s: 20 / s**3, lambda s: 50 / s**2).alarms if "fade away" in one.title]
    assert faded == []
