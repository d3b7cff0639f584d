"""No to every question, one class that is not the largest, and a single yes/no answer that is always the same."""

from __future__ import annotations

from typing import Any

import pytest

from findings.made_training import MadeTraining, flat
from learnscope.record import Column, Table


def answered(
    losses: list[float], function: str, width: int, targets: list[float], said: list[float], **numbers: Any
) -> MadeTraining:
    run = MadeTraining().train(losses)
    for step in range(10, len(losses) + 1, 10):
        columns = [Column("objective_mean", [losses[step - 1]], {"function": function})]
        columns += [Column(name, [float(value)]) for name, value in numbers.items()]
        shares = [Column("target_share", targets), Column("predicted_share", said)]
        tables = [Table("model", ["model"], columns), Table("class", [str(n) for n in range(len(said))], shares)]
        run.write("Objective", step, tables, notes={"of": f"{function} of {width}"})
    return run


BCE = "binary_cross_entropy_with_logits"


def labels(said: float, *, loss: float = 0.085, yes: float = 0.02) -> MadeTraining:
    return answered(
        flat(level=loss, noise=0.002), BCE, 4, [yes] * 4, [said] * 4, majority_share=1 - yes, target_entropy=0.0989,
        classes=4, classes_seen=4, predicted_majority=1 - said, objective_accuracy=1 - yes,
    )  # fmt: skip


def test_no_to_every_question() -> None:
    [finding] = labels(0.0).alarms
    assert (finding.kind, finding.cause, finding.since) == ("majority_guess", True, 10)
    assert "98 %" in finding.title


@pytest.mark.parametrize("run", [labels(0.01), labels(0.0, loss=0.05), labels(0.0, yes=0.002)])
def test_some_yes_or_a_loss_that_shows_knowledge_or_hardly_any_yes(run: MadeTraining) -> None:
    assert run.kinds == []


def weighted(own: float, said: float, right: float) -> MadeTraining:
    return answered(
        flat(level=0.9, noise=0.02), "cross_entropy", 2, [1 - own, own], [1 - said, said], majority_share=1 - own,
        target_entropy=0.33, classes=2, classes_seen=2, predicted_majority=max(said, 1 - said),
        objective_accuracy=right,
    )  # fmt: skip


def test_a_rare_class_for_everything() -> None:
    [finding] = weighted(0.1, 1.0, 0.1).alarms
    assert (finding.kind, finding.cause, list(finding.scopes)) == ("majority_guess", True, ["1"])
    assert "weight" in finding.advice


def test_a_class_that_is_predicted_more_often_than_it_comes() -> None:
    assert "majority_guess" not in weighted(0.1, 0.6, 0.45).kinds


def test_one_yes_no_answer_that_is_always_no() -> None:
    """Two classes in a single output are classes, as they are in two."""
    run = answered(
        flat(level=0.325, noise=0.005), BCE, 1, [0.9, 0.1], [1.0, 0.0], majority_share=0.9, target_entropy=0.325,
        classes=2, classes_seen=2, predicted_majority=1.0, objective_accuracy=0.9,
    )  # fmt: skip
    [finding] = run.alarms
    assert (finding.kind, finding.cause) == ("majority_guess", True)


def pixels(said: float, loss: float = 0.085, no: float = 0.98, guess: float = 0.0989) -> MadeTraining:
    """One output for each pixel: no and yes are its classes."""
    run = answered(
        flat(level=loss, noise=0.002), BCE, 1, [no, 1 - no], [1 - said, said], majority_share=no,
        target_entropy=guess, constant_loss=guess, classes=2, classes_seen=2, predicted_majority=1 - said,
        objective_accuracy=no,
    )  # fmt: skip
    return run.inputs(300, output_width=144.0)


def test_no_to_every_pixel() -> None:
    [finding] = pixels(0.0).alarms
    assert (finding.kind, finding.cause) == ("majority_guess", True)
    assert finding.detail.startswith("No output said yes")
    assert pixels(0.01).kinds == []
    assert pixels(0.0, loss=0.05).kinds == []
    assert pixels(0.0, loss=0.37, no=0.86, guess=0.405).kinds == []  # too many to be missed for their rarity
