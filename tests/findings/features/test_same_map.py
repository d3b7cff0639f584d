"""Masks that are one and the same for every picture."""

from __future__ import annotations

import pytest

from findings.made_training import MadeTraining, Over, flat

BCE = "binary_cross_entropy_with_logits"


def masks(spread: Over, *, right: float = 0.8, width: float = 144.0, loss: float = 0.43) -> MadeTraining:
    """A fifth of the pixels are yes; one constant gives 0.5, and the usual map somewhat less."""
    losses = flat(level=loss, noise=0.01)
    run = MadeTraining().train(losses)
    run.inputs(300, output_spread=spread, output_rms=2.0, output_width=width, output_cosine=0.99, input_std=1.0)
    return run.objective(300, BCE, value=losses, majority_share=0.8, target_entropy=0.5, constant_loss=0.5, classes=2,
                         classes_seen=2, predicted_majority=0.99, objective_accuracy=right)  # fmt: skip


def shrinks(step: int) -> float:
    return 0.4 if step < 80 else 0.2 if step < 200 else 0.14


def test_the_same_map_for_every_picture() -> None:
    [finding] = masks(shrinks).alarms
    assert (finding.kind, finding.cause) == ("labels_unrelated", True)
    assert "7 % of their size" in finding.detail
    assert "10 before 2" in finding.advice


@pytest.mark.parametrize("run", [
    masks(0.8), masks(lambda step: 0.0006 * step), masks(shrinks, right=0.93), masks(shrinks, width=1.0),
])  # fmt: skip
def test_maps_that_differ_or_begin_to_or_answers_that_are_right_or_one_answer(run: MadeTraining) -> None:
    assert run.kinds == []
