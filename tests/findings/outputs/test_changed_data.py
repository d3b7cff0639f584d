"""Inputs and targets of another scale from a step on or in some batches, and rows that are all new at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from findings.made_training import MadeTraining, falling, flat
from learnscope.reading.course.batches import of_each_batch, outlying, scale_change
from learnscope.reading.gather import Series


def series_of(values: Sequence[float]) -> Series:
    return Series(np.arange(1, len(values) + 1), np.array(values), [None] * len(values), "Inputs")


def jump(before: float = 0.4, after: float = 3.0, at: int = 200) -> list[float]:
    return [*falling(at, end=before), *flat(300 - at, level=after, noise=0.1)]


def test_numbers_of_each_batch_against_the_batches_themselves() -> None:
    draw = np.random.default_rng(0)
    batches = [draw.normal(draw.normal(), 10 ** draw.normal(), 64) for _ in range(12)]
    so_far = [np.concatenate(batches[: n + 1]) for n in range(12)]
    means, deviations = of_each_batch(np.array([x.mean() for x in so_far]), np.array([x.std() for x in so_far]))
    np.testing.assert_allclose(means, [x.mean() for x in batches], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(deviations, [x.std() for x in batches], rtol=1e-6)


def test_a_change_is_one_that_lasts_among_numbers_that_were_alike() -> None:
    change = scale_change(series_of([1.0, 1.1, 0.9, 1.0, 1.2, 80.0, 90.0, 70.0]), 3.0)
    assert change is not None
    assert (change.step, change.n) == (6, (5, 3))
    assert change.factor == pytest.approx(80.0)
    smaller = scale_change(series_of([1.0, 1.1, 0.9, 1.0, 0.1, 0.1, 0.12]), 3.0)
    assert smaller is not None
    assert smaller.factor == pytest.approx(10.0)


@pytest.mark.parametrize("values", [
    [1.0, 1.1, 0.9, 1.0, 80.0, 1.0, 1.1, 0.9],  # and back
    [1.0, 1.4, 1.9, 2.6, 3.5, 4.8, 6.6, 9.0],  # a drift
    [1.0, 30.0, 0.1, 2.0, 100.0, 300.0, 200.0],  # of any size
    [1.0, 1.1, 0.9, 1.0, 2.5, 2.4, 2.6, 2.5],  # not by a factor of 3
    [1.0, 1.1, 0.9, 1.0, 9.0, 9.0],  # too short
])  # fmt: skip
def test_what_is_no_change(values: list[float]) -> None:
    assert scale_change(series_of(values), 3.0) is None


def test_batches_that_stand_out() -> None:
    far = outlying(series_of([1.0, 1.2, 400.0, 0.9, 1.1, 500.0, 1.0, 1.0]), 30.0)
    assert far is not None
    assert (far.step, far.n) == (3, (6, 2))
    assert outlying(series_of([1.0, 2.0, 20.0, 0.5]), 30.0) is None
    assert outlying(series_of([1.0, 100.0, 100.0, 100.0, 0.9]), 30.0) is None  # most are


def test_inputs_that_are_no_longer_scaled_explain_a_loss_that_rises() -> None:
    run = MadeTraining().train(jump()).inputs(300, input_std=lambda step: 1.0 if step < 205 else 80.0, input_mean=0.0)
    [finding] = run.alarms
    assert (finding.kind, finding.cause, finding.since) == ("unscaled_inputs", True, 210)
    assert "between steps 200 and 210" in finding.title
    assert "diverging" in [inside.kind for inside in finding.taken_in]


def test_a_change_that_does_no_harm_is_no_alarm() -> None:
    run = (
        MadeTraining().train(falling()).inputs(300, input_std=lambda step: 1.0 if step < 205 else 80.0, input_mean=0.0)
    )
    assert run.kinds == []


def targets(of_batch: Callable[[int], np.ndarray]) -> dict[str, list[float]]:
    """Mean and deviation of all targets up to each step, as a probe records them at every tenth."""
    seen = [of_batch(step) for step in range(10, 301, 10)]
    so_far = [np.concatenate(seen[: n + 1]) for n in range(30)]
    each = {"target_mean": [x.mean() for x in so_far], "target_std": [x.std() for x in so_far]}
    return {name: [values[(step - 1) // 10] for step in range(1, 301)] for name, values in each.items()}


def drawn(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal(64)


def regression(losses: list[float], of_batch: Callable[[int], np.ndarray]) -> MadeTraining:
    numbers = {"constant_loss": 2.0, "output_mean": 0.3, "output_std": 0.7, **targets(of_batch)}
    return MadeTraining().train(losses).objective(300, "mse_loss", value=losses, **numbers)


def test_targets_in_another_unit_from_a_step_on() -> None:
    [finding] = regression(jump(), lambda step: drawn(step) * (1 if step <= 200 else 60)).alarms
    assert (finding.kind, finding.cause, finding.since) == ("targets_out_of_range", True, 210)


def test_a_few_targets_that_are_far_too_large_explain_a_loss_that_rises() -> None:
    def with_outliers(step: int) -> np.ndarray:
        values = drawn(step)
        values[0] = 1000 if step % 50 == 0 else values[0]
        return values

    [finding] = regression(jump(), with_outliers).alarms
    assert (finding.kind, finding.cause) == ("targets_out_of_range", True)
    assert "20 % of the batches" in finding.title
    assert regression(falling(), with_outliers).kinds == []  # heavy tails that are learned


def test_one_part_of_the_data_after_the_other() -> None:
    seen = lambda step: 0.0 if step in (10, 160) else 1.0  # noqa: E731
    losses = [*falling(150, end=1.0, noise=0.02), *falling(150, start=5.0, end=1.0, noise=0.02)]
    run = MadeTraining().train(losses).inputs(300, seen_share=seen, distinct_rows=400.0, duplicate_share=0.0)
    [finding] = run.alarms
    assert (finding.kind, finding.cause, finding.since) == ("sorted_data", True, 160)
    assert [inside.kind for inside in finding.taken_in] == ["loss_spike"]
    mixed = MadeTraining().train(losses).inputs(300, seen_share=0.9, distinct_rows=400.0, duplicate_share=0.0)
    assert mixed.kinds == ["loss_spike"]
