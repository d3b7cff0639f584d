"""The table of last and best values, against NumPy on the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from comparison.made import compared, made
from learnscope.comparison.series import Key, direction, is_clock
from learnscope.quantities import declared


def test_last_best_and_difference() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=30), rng.normal(size=20)
    comparison = compared(
        made({step: float(v) for step, v in enumerate(first, start=1)}),
        made({2 * step: float(v) for step, v in enumerate(second, start=1)}),
    )
    row = comparison.table().loc[("Loss", "model", "model", "loss", "")]
    assert row["last"].tolist() == [first[-1], second[-1]]
    assert row["last_step"].tolist() == [30, 40]
    assert row["steps"].tolist() == [30, 20]
    assert row["best"].tolist() == [first.min(), second.min()]
    assert row["best_step"].tolist() == [1 + first.argmin(), 2 * (1 + second.argmin())]
    assert row["difference", "b"] == second[-1] - first[-1]
    assert row["common_steps", ""] == 15  # the even ones up to 30


def test_only_a_known_direction_has_a_best() -> None:
    left, right = made(), made()
    for run in (left, right):
        for step, value in ((1, 0.2), (2, 0.9), (3, 0.5)):
            run.model("Own", step, accuracy=value, energy=value)
    table = compared(left, right).table().droplevel(["probe", "kind", "scope", "labels"])
    assert table.loc["accuracy", ("best", "a")] == 0.9
    assert table.loc["accuracy", ("best_step", "b")] == 2
    assert math.isnan(table.loc["energy", ("best", "a")])
    assert table.loc["energy", ("best_step", "a")] is pd.NA


@pytest.mark.parametrize(
    ("name", "expected"),
    [("loss", "lowest"), ("train_loss", "lowest"), ("Val/Loss", "lowest"), ("perplexity", "lowest"), ("loss_std", None),
     ("loss_scale", None), ("glossary", None), ("holdout_accuracy", "highest"), ("accuracy_std", None), ("norm", None)],
)  # fmt: skip
def test_direction_is_taken_from_names_that_tell_it(name: str, expected: str | None) -> None:
    assert direction(Key("Own", "model", "model", name)) == expected


def test_direction_of_a_declared_name_is_the_declared_one() -> None:
    judged = [(probe, q) for probe, quantities in declared().items() for q in quantities.all() if q.better]
    assert judged
    for probe, quantity in judged:
        key = Key(f"{probe}_2", "model", "model", quantity.name)
        assert direction(key) == ("lowest" if quantity.better == "lower" else "highest")


@pytest.mark.parametrize("name", ["step_time", "time/step", "elapsed", "batch_ms", "tokens_per_sec", "gpu memory"])
def test_what_tells_of_the_machine(name: str) -> None:
    assert is_clock(name)


@pytest.mark.parametrize("name", ["loss", "timesteps", "momentum", "sentiment", "memorised", "norms"])
def test_what_tells_of_the_training(name: str) -> None:
    assert not is_clock(name)


def test_missing_last_values_have_their_reason_and_no_difference() -> None:
    comparison = compared(made({1: 1.0, 2: math.inf}), made({1: 1.0, 2: 3.0}))
    row = comparison.table().iloc[0]
    assert math.isnan(row["last", "a"])
    assert row["status", "a"] == "inf"
    assert math.isnan(row["difference", "b"])
    assert row["parts_at", "b"] == 2
    assert row["best", "a"] == 1.0


def test_a_series_that_one_run_lacks() -> None:
    left, right = made({1: 1.0}), made({1: 1.0})
    right.model("Own", 1, extra=2.0)
    row = compared(left, right).table().loc[("Own", "model", "model", "extra", "")]
    assert math.isnan(row["last", "a"])
    assert row["last", "b"] == 2.0
    assert row["steps", "a"] is pd.NA
    assert row["common_steps", ""] == 0
    assert row["parts_at", "b"] is pd.NA


def test_kinds_and_metrics_narrow_it() -> None:
    left, right = made({1: 1.0}), made({1: 1.0})
    for run in (left, right):
        run.gradients(1, {"h.0": 1.0, "h.1": 2.0})
    comparison = compared(left, right)
    assert set(comparison.table("layer").index.get_level_values("scope")) == {"h.0", "h.1"}
    only = compared(left, right, metrics=["norm"])
    assert set(only.table().index.get_level_values("name")) == {"norm"}
    assert {key.name for key in only.partings[0].series} == {"norm"}


def test_runs_without_numbers() -> None:
    comparison = compared(made(), made())
    assert len(comparison.table()) == 0
    assert comparison.notes == ["a holds no numbers", "b holds no numbers"]


def test_huge_values_do_not_leave_infinity() -> None:
    comparison = compared(made({1: 1.7e308}), made({1: -1.7e308}))
    assert comparison.lines[0].differences == {"b": None}
