"""Targets that are broadcast in a loss by hand."""

from __future__ import annotations

from findings.made_training import MadeTraining, flat


def run(disorder: float, optimizers: int = 1, spread: float = 0.05) -> MadeTraining:
    made = MadeTraining().train(flat(level=0.6))
    made.manifest["optimizers"] = made.manifest["optimizers"] * optimizers
    for step in range(10, 301, 10):
        made.model("Inputs", step, gradient_disorder=disorder)
    return made.inputs(300, output_spread=spread)


def test_a_gradient_of_the_output_alone() -> None:
    [finding] = run(0.0).alarms
    assert (finding.kind, finding.cause, finding.since) == ("targets_broadcast", True, 10)


def test_targets_of_their_own() -> None:
    assert "targets_broadcast" not in run(0.45).kinds


def test_a_player_that_is_told_the_same_of_all() -> None:
    assert "targets_broadcast" not in run(0.0, optimizers=2).kinds


def test_yes_or_no_for_all() -> None:
    made = run(0.0).objective(300, "binary_cross_entropy_with_logits", value=flat(level=0.6))
    assert "targets_broadcast" not in made.kinds


def test_outputs_far_apart_are_in_order_whatever_their_targets_are() -> None:
    assert "targets_broadcast" not in run(0.0, spread=5.0).kinds
