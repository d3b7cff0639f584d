"""Outputs that become the same for all inputs, and dropout that leaves nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling, flat
from learnscope.findings import find

Course = Callable[[int], float]


def decay(first: float, last: float, steps: int = 300) -> Course:
    return lambda step: first * (last / first) ** (step / steps)


def embedded(losses: list[float], apart: Course, spread: Course, **numbers: Any) -> MadeTraining:
    usual = {"output_width": 16, "output_rms": 0.5, "output_confidence": 0.2, "input_std": 1.0, **numbers}
    return (
        MadeTraining()
        .train(losses)
        .inputs(len(losses), output_cosine=lambda step: 1 - apart(step), output_spread=spread, **usual)
    )


SOLVED = falling(start=0.01, end=1e-5, noise=1e-6)


def test_squared_distances_that_shrink_to_nothing() -> None:
    [finding] = embedded(SOLVED, decay(0.1, 1e-6), decay(0.05, 1e-4)).alarms
    assert (finding.kind, finding.severity, finding.cause) == ("embedding_collapse", "critical", True)
    assert finding.since is not None
    assert 100 < finding.since < 220
    assert "went from 0.9" in finding.detail


def test_cosines_that_become_one_while_outputs_grow() -> None:
    run = embedded(SOLVED, decay(0.05, 1e-5), decay(0.01, 0.05), output_rms=decay(0.1, 0.9))
    assert run.kinds == ["embedding_collapse"]
    minus = [loss - 1 for loss in falling(start=0.04, end=1e-5, noise=1e-6)]  # −cos
    assert embedded(minus, decay(0.05, 1e-5), decay(0.01, 0.05)).kinds == ["embedding_collapse"]


def test_outputs_that_shrink_to_zero_without_a_bias() -> None:
    assert embedded(SOLVED, lambda _: 0.3, decay(0.05, 1e-5), output_rms=decay(0.5, 1e-4)).kinds == [
        "embedding_collapse"
    ]


@pytest.mark.parametrize(
    ("losses", "apart", "numbers"),
    [
        (falling(start=0.01, end=0.004, noise=1e-4), decay(0.1, 1e-6), {}),  # the loss is not solved
        (SOLVED, lambda _: 0.2, {}),  # outputs differ as before
        (SOLVED, decay(0.1, 1e-6), {"output_width": 2}),  # no embedding
        (SOLVED, decay(0.1, 1e-6), {"output_confidence": 0.97}),  # a policy that always does the same
        (SOLVED, decay(0.1, 1e-6), {"input_std": 0.0}),  # there is but one input
        (falling(start=9e4, end=10, noise=0.1), decay(0.1, 1e-4), {}),  # numbers with a large offset
    ],
)
def test_no_collapse(losses: list[float], apart: Course, numbers: dict[str, Any]) -> None:
    assert "embedding_collapse" not in [f.kind for f in find(embedded(losses, apart, lambda _: 0.1, **numbers).reader)]


def test_targets_that_are_known_are_judged_by_them() -> None:
    run = embedded(SOLVED, decay(0.1, 1e-6), decay(0.05, 1e-4))
    run.objective(300, "mse_loss", value=SOLVED, constant_loss=0.5, target_std=0.7, output_std=0.7, output_mean=0.0)
    assert run.alarms == []


@pytest.mark.parametrize(("p", "losses", "kinds"), [
    (0.95, flat(level=1.3), ["dropout_too_strong"]), (0.5, flat(level=1.3), []), (0.95, falling(start=1.3), []),
])  # fmt: skip
def test_dropout_that_leaves_too_little(p: float, losses: list[float], kinds: list[str]) -> None:
    run = MadeTraining().train(losses)
    run.manifest["model"]["dropout"] = {"drop": p}
    assert run.kinds == kinds


def by_hand(losses: list[float], classes: int = 10, sure: float = 0.12) -> MadeTraining:
    run = MadeTraining().train(losses)
    for step in (2, *range(10, len(losses) + 1, 10)):
        run.inputs(step, every=step, output_width=classes, output_confidence=sure)
    return run


def test_a_loss_by_hand_that_stays_at_chance() -> None:
    [finding] = by_hand(flat(level=math.log(10))).alarms
    assert finding.kind == "labels_unrelated"
    assert "guessing all classes alike gives 2.3" in finding.detail


def test_a_loss_by_hand_of_another_kind_is_not_held_against_chance() -> None:
    assert by_hand(flat(level=1.1)).alarms == []  # not ln 10
    assert by_hand(flat(level=math.log(10)), sure=0.6).alarms == []  # the first outputs were not alike
    assert by_hand(falling(start=math.log(10))).alarms == []


def test_a_collapse_at_the_margin() -> None:
    """Triplets of outputs that are all the same have a loss of the margin, whatever the batch."""
    margin = [0.305, *(0.3 + 1e-3 * np.exp(-np.arange(299) / 5))]
    [finding] = embedded(margin, decay(0.1, 1e-6), decay(0.02, 1e-4)).alarms
    assert (finding.kind, finding.cause) == ("embedding_collapse", True)
    assert "stays at 0.3" in finding.title
    varied = flat(level=0.3, noise=0.01)  # other batches, other losses
    assert embedded(varied, decay(0.1, 1e-6), decay(0.02, 1e-4)).alarms == []


def test_dropout_goes_before_the_steps_that_it_makes_large() -> None:
    """The first losses are far above guessing, by what is left and made twenty times larger."""
    losses = [2.5, *np.linspace(20, 2, 30), *flat(269, level=1.38)]
    run = MadeTraining("SGD").train(losses, update=lambda step: 0.5 if step <= 30 else 1e-3, gradient=20.0)
    run.objective(300, value=losses, objective_accuracy=0.25, majority_share=0.27, target_entropy=1.38, classes=4,
                  classes_seen=4, predicted_majority=0.5)  # fmt: skip
    assert run.kinds == ["learning_rate_too_high"]
    run.manifest["model"]["dropout"] = {"drop": 0.95}
    assert run.kinds == ["dropout_too_strong"]
