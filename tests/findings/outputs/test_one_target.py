"""Targets that are broadcast in a loss by hand."""

from __future__ import annotations

from findings.made_training import MadeTraining, flat


def run(disorder: float, optimizers: int = 1, spread: float = 0.1) -> MadeTraining:
    """Outputs `spread` apart, beside a loss whose root is 0.77."""
    made = MadeTraining().train(flat(level=0.6)).inputs(300, output_spread=spread)
    made.manifest["optimizers"] = made.manifest["optimizers"] * optimizers
    for step in range(10, 301, 10):
        made.model("Inputs", step, gradient_disorder=disorder)
    return made


def test_a_gradient_of_the_output_alone() -> None:
    [finding] = run(0.0).alarms
    assert (finding.kind, finding.cause, finding.since) == ("targets_broadcast", True, 10)


def test_outputs_far_apart_whose_targets_happen_to_be_close() -> None:
    assert "targets_broadcast" not in run(0.0, spread=0.5).kinds


def test_targets_of_their_own() -> None:
    assert "targets_broadcast" not in run(0.45).kinds


def test_a_player_that_is_told_the_same_of_all() -> None:
    assert "targets_broadcast" not in run(0.0, optimizers=2).kinds


def test_yes_or_no_for_all() -> None:
    made = run(0.0).objective(300, "binary_cross_entropy_with_logits", value=flat(level=0.6))
    assert "targets_broadcast" not in made.kinds
