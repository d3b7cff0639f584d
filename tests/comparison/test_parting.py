"""Where runs part, against comparisons written out with pandas and plain Python."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from comparison.made import compared, made, opened
from learnscope.comparison.parting import part
from learnscope.reading.gather import Series
from learnscope.record import Column, Table


def series(values: dict[int, float | None], status: dict[int, str] | None = None) -> Series:
    numbers = [math.nan if value is None else value for value in values.values()]
    reasons = [(status or {}).get(step) for step in values]
    return Series(np.array(list(values), dtype=np.int64), np.array(numbers, dtype=np.float64), reasons)


def first_difference(left: dict[int, float | None], right: dict[int, float | None], tolerance: float) -> int | None:
    """By the definition, a step at a time."""
    for step in sorted(left.keys() & right.keys()):
        a, b = left[step], right[step]
        if a is None or b is None:
            if a is not b:
                return step
        elif tolerance == 0:
            if a.hex() != b.hex():
                return step
        elif abs(a - b) > tolerance * max(abs(a), abs(b)):
            return step
    return None


@pytest.mark.parametrize("tolerance", [0.0, 1e-9, 1e-3, 0.5])
@pytest.mark.parametrize("seed", range(20))
def test_against_the_definition(seed: int, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    left: dict[int, float | None] = {}
    right: dict[int, float | None] = {}
    for step in range(1, 40):
        value = float(rng.normal() * 10.0 ** rng.integers(-12, 12))
        if rng.random() < 0.8:
            left[step] = None if rng.random() < 0.05 else value
        if rng.random() < 0.8:
            off = rng.choice([0.0, 0.0, 0.0, 1e-12, 1e-6, 1.0])
            right[step] = None if left.get(step, 0.0) is None else value * (1 + off)
    found = part(series(left), series(right), tolerance)
    assert found.step == first_difference(left, right, tolerance)
    assert found.common.tolist() == sorted(left.keys() & right.keys())


def test_one_bit_is_a_difference_and_a_tolerance_forgives_it() -> None:
    left, right = series({1: 1.0, 2: 0.1}), series({1: 1.0, 2: math.nextafter(0.1, 1)})
    assert part(left, right).step == 2
    assert part(left, right, 1e-15).step is None
    assert part(series({1: 0.0}), series({1: -0.0})).step == 1
    assert part(series({1: 0.0}), series({1: -0.0}), 1e-300).step is None


def test_the_tolerance_is_relative_to_the_larger_and_does_not_overflow() -> None:
    assert part(series({1: 99.0}), series({1: 100.0}), 0.01).step is None  # 1 is not more than 0.01 · 100
    assert part(series({1: 98.9}), series({1: 100.0}), 0.01).step == 1
    assert part(series({1: 1.7e308}), series({1: -1.7e308}), 1.0).step == 1


def test_missing_values() -> None:
    nan, inf = {1: "nan"}, {1: "inf"}
    assert part(series({1: None}, nan), series({1: None}, nan)).step is None
    assert part(series({1: None}, nan), series({1: None}, inf)).step == 1
    found = part(series({1: None}, nan), series({1: 3.0}))
    assert (found.step, found.values, found.status) == (1, (None, 3.0), ("nan", None))
    assert part(series({1: 3.0}), series({1: None}, inf), 1e9).step == 1


def test_over_all_series_the_earliest_counts() -> None:
    left, right = made({1: 1.0, 2: 1.0, 3: 1.0}), made({1: 1.0, 2: 1.0, 3: 2.0})
    for run, norm in ((left, 5.0), (right, 6.0)):
        run.write("GradientFlow", 2, [Table("layer", ["h.0", "h.1"], [Column("norm", [1.0, norm])])])
    [found] = compared(left, right).partings
    assert (found.state, found.step, found.common_steps, found.steps_before) == ("parts", 2, 3, 1)
    [key] = found.parted
    assert (key.probe, key.kind, key.scope, key.name) == ("GradientFlow", "layer", "h.1", "norm")
    own = {key.name: one.step for key, one in found.series.items() if key.kind == "model"}
    assert own == {"loss": 3}


def test_never_and_no_common_step_are_two_answers() -> None:
    same = compared(made({1: 1.0, 3: 2.0}), made({1: 1.0, 3: 2.0, 5: 9.0})).partings[0]
    assert (same.state, same.step, same.common_steps, same.steps_before) == ("never", None, 2, 2)
    apart = compared(made({1: 1.0, 3: 2.0}), made({2: 1.0, 4: 2.0})).partings[0]
    assert (apart.state, apart.step, apart.common_steps) == ("no common step", None, 0)
    nothing = compared(made(), made({1: 1.0})).partings[0]
    assert (nothing.state, nothing.only_first, nothing.only_other) == ("no common step", 0, 1)


def test_times_and_memory_are_not_asked() -> None:
    left, right = made({1: 1.0}), made({1: 1.0})
    for run, seconds in ((left, 0.1), (right, 0.2)):
        run.model("Loss", 1, step_time=seconds, peak_memory=seconds, timestep=4.0)
    [found] = compared(left, right).partings
    assert found.state == "never"
    assert sorted(key.name for key in found.left_out) == ["peak_memory", "step_time"]
    assert sorted(key.name for key in found.series) == ["loss", "timestep"]


def test_three_runs_each_with_the_first_and_any_two_when_asked() -> None:
    comparison = compared(
        made({1: 1.0, 2: 1.0, 3: 1.0}), made({1: 1.0, 2: 1.0, 3: 5.0}), made({1: 1.0, 2: 7.0, 3: 1.0})
    )
    assert [(p.first, p.other, p.step) for p in comparison.partings] == [("a", "b", 3), ("a", "c", 2)]
    assert comparison.parting("b", "c").step == 2


def test_what_a_later_attempt_superseded_does_not_count() -> None:
    straight = made({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})
    resumed = made({1: 1.0, 2: 2.0, 3: 99.0, 4: 99.0})
    resumed.resume(2)
    for step in (3, 4):
        resumed.loss(step, float(step))
    comparison = compared(straight, resumed)
    assert comparison.partings[0].state == "never"
    assert comparison.curve("loss")["b"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert comparison.runs[1].resumed_at == (2,)


def test_curves_are_an_outer_join_and_nothing_is_interpolated() -> None:
    left, right = made({1: 1.0, 3: None, 6: 3.0}), made({3: 4.0, 4: 5.0, 6: 6.0})
    frames = []
    for run, label in ((left, "a"), (right, "b")):
        frame = opened(run).frame("Loss", "loss")
        frames.append(frame[["step", "value"]].rename(columns={"value": label}))
    expected = pd.merge(*frames, on="step", how="outer").set_index("step").sort_index()
    found = compared(left, right).curve("loss")
    pd.testing.assert_frame_equal(found, expected)
    assert found["a"].isna().tolist() == [False, True, True, False]


def test_labels_keep_series_apart_and_a_run_may_lack_one() -> None:
    left, right = made(), made()
    left.gradients(1, {"h.0": 3.0}, clip=1.0)
    right.gradients(1, {"h.0": 3.0})
    comparison = compared(left, right)
    stepped = comparison.curve("norm", stage="stepped")
    assert stepped.loc[1].tolist() == [1.0, 3.0]
    before = comparison.curve("norm", stage="before_clip")
    assert before["a"].tolist() == [3.0]
    assert before["b"].isna().all()


def test_of_two_numbers_for_a_step_the_last_counts() -> None:
    left = made({1: 1.0, 2: 2.0})
    left.loss(1, 8.0)
    assert compared(left, made({1: 8.0, 2: 2.0})).partings[0].state == "never"


def test_scopes_that_come_and_go_are_one_series_each() -> None:
    """Each scope's series is that of `frame()`, also where a record holds more scopes, fewer, or none."""
    run = made()
    for step, scopes in ((1, ["x", "y"]), (2, ["y"]), (3, []), (2, ["z", "y"]), (4, ["y", "x"])):
        values = [None if scope == "z" else 10.0 * step + len(scopes) for scope in scopes]
        run.write("Own", step, [Table("tensor", scopes, [Column("q", values)])])
    comparison = compared(run, made({1: 1.0}))
    frame = opened(run).frame("Own").drop_duplicates(["step", "scope"], keep="last")
    for scope, part_of_it in frame.groupby("scope"):
        found = comparison.curve("q", kind="tensor", scope=scope)["a"]
        np.testing.assert_array_equal(found.index, sorted(part_of_it["step"]))
        np.testing.assert_array_equal(found, part_of_it.sort_values("step")["value"])
    assert comparison.curve("q", kind="tensor", scope="y")["a"].tolist() == [12.0, 22.0, 42.0]
    [z] = [line for line in comparison.lines if line.key.scope == "z"]
    assert (z.of["a"].last, z.of["a"].status) == (None, "not measured")


def test_a_torn_line_is_reported() -> None:
    left, right = made({1: 1.0, 2: 2.0}), made({1: 1.0, 2: 2.0})
    right.backend.append('{"probe": "Loss", "step": 3, "ta')
    comparison = compared(left, right)
    assert comparison.partings[0].state == "never"
    [note] = comparison.notes
    assert "b: line 3 of records.jsonl is torn" in note
