"""Outputs that do not depend on inputs, from the start."""

from __future__ import annotations

from findings.made_training import MadeTraining, falling, flat

TEN = {"majority_share": 0.11, "target_entropy": 2.3, "classes": 10, "classes_seen": 10,
       "objective_accuracy": 0.1, "predicted_majority": 0.4}  # fmt: skip


def at_chance(spread: float, **inputs: float) -> MadeTraining:
    losses = flat(level=2.3)
    made = MadeTraining().train(losses).objective(300, value=losses, **TEN)
    return made.inputs(300, output_spread=spread, output_rms=1.0, **{"input_std": 1.0, **inputs})


def test_units_that_began_as_copies_of_one() -> None:
    made = at_chance(0.3)
    made.manifest["model"]["alike"] = ["0.weight", "2.weight"]
    [finding] = made.alarms
    assert (finding.kind, finding.cause, finding.scopes) == ("embedding_collapse", True, ["0.weight", "2.weight"])


def test_frozen_copies_and_a_model_that_learns() -> None:
    made = at_chance(0.3)
    made.manifest["model"] |= {"alike": ["0.weight"], "frozen": ["0.weight"]}
    assert made.kinds == ["labels_unrelated"]
    learns = MadeTraining().train(falling())
    learns.manifest["model"]["alike"] = ["0.weight"]
    assert learns.alarms == []


def test_outputs_that_are_the_same_for_all() -> None:
    [finding] = at_chance(1e-8).alarms
    assert (finding.kind, finding.cause) == ("embedding_collapse", True)
    assert "labels_unrelated" in [inside.kind for inside in finding.taken_in]


def test_outputs_that_differ_or_inputs_that_do_not() -> None:
    assert at_chance(0.01).kinds == ["labels_unrelated"]
    assert at_chance(1e-8, input_std=0.0).kinds == ["labels_unrelated"]
