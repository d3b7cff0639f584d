"""Holdouts that differ, told by what is learned of new examples; and the same few examples at every step."""

from __future__ import annotations

import math

import pytest

from findings.made_training import MadeTraining, Over, falling, flat
from learnscope.record import Finding

NEVER_BETTER = (2.3, 2.6, 2.9, 3.2, 3.5, 3.8, 4.1)


def again(first: int) -> Over:
    return lambda step: 0.2 * (step >= first)


def alarms(seen: Over, held: tuple[float, ...] = NEVER_BETTER, *, rows: float = 500, **options: float) -> list[Finding]:
    run = MadeTraining().train(falling(**options))
    run.inputs(300, seen_share=seen, distinct_rows=rows, duplicate_share=0.0)
    for step, value in zip((1, *range(10, 300, 300 // len(held))), held, strict=False):
        run.holdout(step, None, mean=value)
    return run.alarms


def test_what_is_learned_of_new_examples_does_not_help_on_the_holdout() -> None:
    [finding] = alarms(again(60))
    assert (finding.kind, finding.cause) == ("holdout_differs", True)
    assert finding.detail.startswith("Up to step 50 no training row that was looked at had come before")
    assert "Overfitting" in finding.ruled_out[0]
    assert "worsening" in [inside.kind for inside in finding.taken_in]


@pytest.mark.parametrize("seen", [again(10), again(20), again(1000), 1.0, math.nan])
def test_examples_that_may_have_been_remembered(seen: Over) -> None:
    """From the start, never (they may be changed at random), always, or not known."""
    assert "holdout_differs" not in [finding.kind for finding in alarms(seen)]


def test_a_holdout_that_gets_better_for_a_while() -> None:
    assert "holdout_differs" not in [f.kind for f in alarms(again(60), (2.3, 2.0, 1.6, 1.8, 2.2, 2.6, 3.0))]


def test_a_training_loss_that_fell_later() -> None:
    assert "holdout_differs" not in [finding.kind for finding in alarms(again(60), start=2.3, end=2.2)]


def test_another_loss_on_the_holdout() -> None:
    """A penalty in the training loss falls whatever the holdout does."""
    assert "holdout_differs" not in [finding.kind for finding in alarms(again(60), start=9.0)]


def test_the_same_few_examples_at_every_step() -> None:
    [finding] = alarms(lambda step: float(step > 10), (2.3, 1.5, 1.2, 1.1, 1.0), rows=3)
    assert (finding.kind, finding.cause) == ("duplicated_data", True)
    assert finding.title == "Every step trains on the same 3 examples"


def test_a_data_set_that_is_one_batch() -> None:
    assert alarms(lambda step: float(step > 10), (2.3, 1.5, 1.2, 1.1, 1.0), rows=150) == []
    assert alarms(lambda step: float(step > 10), (2.3, 1.5, 0.8, 0.4, 0.22), rows=3) == []  # and all is learned


def repeated(**options: float) -> list[Finding]:
    """1,000 examples in batches of 50: a row has come three times on average at step 60."""
    run = MadeTraining().train([*flat(24), *falling(276, **options)])
    distinct = lambda step: 1000 * (1 - 0.95 ** (step / 10))  # noqa: E731
    seen = lambda step: max(0.0, 1 - 0.95 ** ((step - 20) / 10))  # noqa: E731
    run.inputs(300, seen_share=seen, distinct_rows=distinct, duplicate_share=0.0, rows=50.0)
    for step, value in zip((1, *range(10, 300, 42)), NEVER_BETTER, strict=False):
        run.holdout(step, None, mean=value)
    return run.alarms


def test_much_that_is_learned_of_rows_that_came_a_few_times() -> None:
    [finding] = repeated()
    assert (finding.kind, finding.cause) == ("holdout_differs", True)
    assert " a training row had come 3 times on average" in finding.detail
    assert "memorised its examples" in finding.ruled_out[0]


def test_little_that_is_learned_of_them_may_be_memory() -> None:
    assert "holdout_differs" not in [finding.kind for finding in repeated(end=1.6)]
