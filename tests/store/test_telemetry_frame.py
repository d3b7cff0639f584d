"""Telemetry files as tables, against pandas' own flattening; what a kill, an old writer or an odd value leaves."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import learnscope as ls
from learnscope.characters import visible_json
from learnscope.store.telemetry import global_steps, read_telemetry

FIXED = ["batch_idx", "epoch", "global_step", "timestamp", "status"]


def line(step: int, **more: Any) -> dict[str, Any]:
    return {
        "batch_idx": step,
        "epoch": 0,
        "global_step": step,
        "timestamp": f"2026-11-16T01:02:03.{step:06d}",
        "gradient_norm": {"overall": 1.5 * step, "group_0": None, "backbone": 1e-30},
        "weight_delta": {"overall": 0.1 + step},
        "learning_rates": {"group_0": 1e-5},
        "holdout_logits": {
            "logits": [[0.25, 0.75], [step, None]], "labels": [1, 0], "predictions": [1, 0],
            "accuracy": 0.5, "loss": 0.69,
        },
        "batch_stats": {"winner_0_pct": 48.5, "winner_1_pct": 51.5, "batch_size": 8},
    } | more  # fmt: skip


def write(path: Path, *lines: Any) -> Path:
    """Dictionaries as JSON, bytes as they are."""
    parts = [one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in lines]
    path.write_bytes(b"".join(parts))
    return path


class TestTable:
    def test_numbers_are_those_of_pandas_own_flattening(self, tmp_path: Path) -> None:
        lines = [line(step) for step in range(1, 30)]
        del lines[3]["holdout_logits"], lines[7]["weight_delta"]["overall"]
        lines[9]["logged"] = {"loss": 0.7, "Größe 名": 3}
        frame = read_telemetry(write(tmp_path / "telemetry.jsonl", *lines))
        expected = pd.json_normalize(lines).drop(
            columns=[f"holdout_logits.{n}" for n in ("logits", "labels", "predictions")]
        )
        assert set(frame.columns) == {*expected.columns, "status"}
        for name in set(expected.columns) - {"timestamp"}:
            np.testing.assert_array_equal(frame[name].to_numpy(float), expected[name].to_numpy(float), err_msg=name)
            assert frame[name].dtype == ("int64" if name in FIXED else "float64"), name
        assert frame["timestamp"].dtype == "datetime64[us]"
        assert frame["timestamp"].tolist() == [pd.Timestamp(body["timestamp"]) for body in lines]

    def test_columns_stand_by_sections_in_the_order_of_their_appearance(self, tmp_path: Path) -> None:
        lines = [
            {"epoch": 0, "batch_idx": 1, "b": {"y": 1, "deep": {"n": 1}}, "status": {"a": "off"}, "a": {}},
            {"epoch": 0, "batch_idx": 2, "c": {"z": 1}, "b": {"x": 2}, "a": {"w": 1}},
            {"epoch": 0, "batch_idx": 3, "a": {"v": 1}, "b": {"deep": {"m": 1}}},
        ]
        frame = read_telemetry(write(tmp_path / "t", *lines))
        assert frame.columns.tolist() == [
            *FIXED[:4],
            "b.y",
            "b.deep.n",
            "b.deep.m",
            "b.x",
            "a.w",
            "a.v",
            "c.z",
            "status",
        ]

    def test_null_is_nan_and_its_reason_is_kept(self, tmp_path: Path) -> None:
        reason = {"weight_delta.overall": "nothing to compare with yet"}
        first = line(1, weight_delta={"overall": None}, status=reason)
        frame = read_telemetry(write(tmp_path / "t", first, line(2), line(3, status={})))
        assert math.isnan(frame["weight_delta.overall"][0])
        assert frame["weight_delta.overall"].tolist()[1:] == [2.1, 3.1]
        assert frame["status"].tolist() == [reason, None, None]
        assert frame["gradient_norm.group_0"].isna().all(), "a number that was never measured has its column"
        assert frame["gradient_norm.group_0"].dtype == "float64"

    def test_a_section_that_is_null_has_no_column_beside_its_numbers(self, tmp_path: Path) -> None:
        lines = [line(1, holdout_logits=None), line(2), line(3, holdout_logits=None)]
        frame = read_telemetry(write(tmp_path / "t", *lines))
        assert "holdout_logits" not in frame
        np.testing.assert_array_equal(frame["holdout_logits.accuracy"], [np.nan, 0.5, np.nan])

    def test_arrays_only_if_asked_for(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t", line(1), line(2, holdout_logits=None), line(3))
        assert not [name for name in read_telemetry(path) if name in ("holdout_logits.logits", "holdout_logits.labels")]
        frame = read_telemetry(path, logits=True)
        found = frame["holdout_logits.logits"]
        assert found.dtype == object
        assert found[0].dtype == np.float64
        np.testing.assert_array_equal(found[0], [[0.25, 0.75], [1.0, np.nan]])
        np.testing.assert_array_equal(found[2], [[0.25, 0.75], [3.0, np.nan]])
        assert found[1] is None
        assert [value.dtype for value in frame["holdout_logits.labels"][[0, 2]]] == [np.int64, np.int64]
        np.testing.assert_array_equal(frame["holdout_logits.predictions"][2], [1, 0])

    def test_arrays_are_of_one_type_throughout(self, tmp_path: Path) -> None:
        lines = [line(1), line(2), line(3)]
        lines[1]["holdout_logits"] |= {"predictions": [0.5, None], "labels": [], "logits": [1, -1]}
        frame = read_telemetry(write(tmp_path / "t", *lines), logits=True)
        assert {value.dtype for value in frame["holdout_logits.predictions"]} == {np.dtype(np.float64)}
        assert {value.dtype for value in frame["holdout_logits.labels"]} == {np.dtype(np.int64)}
        np.testing.assert_array_equal(frame["holdout_logits.predictions"][1], [0.5, np.nan])
        assert frame["holdout_logits.labels"][1].shape == (0,)
        assert frame["holdout_logits.logits"][1].dtype == np.float64

    def test_torn_and_damaged_lines_are_skipped_and_named(self, tmp_path: Path) -> None:
        whole = json.dumps(line(9)).encode()
        damaged = [
            whole[:100] + b"\n", b"\x00" * 50 + b"\n", b'{"batch_idx":1,"epoch":0,"x":"\xff"}\n', b"[1, 2]\n", b"7\n",
            whole + whole + b"\n", b'{"epoch":0}\n', b'{"batch_idx":1.5,"epoch":0}\n',
            b'{"batch_idx":true,"epoch":0}\n', b'{"batch_idx":1,"epoch":0,"global_step":"1"}\n',
            b'{"batch_idx":1,"epoch":99999999999999999999}\n',
            b'{"batch_idx":\n', b'{"batch_idx":null,"epoch":0}\n', b'{"batch_idx":1,"epoch":0,"x":Inf}\n',
        ]  # fmt: skip
        for bad in damaged:
            for blank, number in ((b"", 3), (b"\n", 4)):
                path = write(tmp_path / "t", line(1), line(2), blank, bad, line(3))
                with pytest.warns(UserWarning, match=rf"line {number}: ") as said:
                    frame = read_telemetry(path)
                assert len(said) == 1
                assert str(path) in str(said[0].message)
                assert frame["batch_idx"].tolist() == [1, 2, 3], bad

    def test_a_last_line_without_its_end(self, tmp_path: Path) -> None:
        whole = json.dumps(line(2)).encode()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(read_telemetry(write(tmp_path / "t", line(1), whole))) == 2
        with pytest.warns(UserWarning, match="line 2: "):
            assert len(read_telemetry(write(tmp_path / "t", line(1), whole[:-1]))) == 1

    def test_many_damaged_lines_are_counted(self, tmp_path: Path) -> None:
        with pytest.warns(UserWarning, match=r"line 1: .*line 10: .*; and 3 more$"):
            frame = read_telemetry(write(tmp_path / "t", *[b"{\n"] * 13))
        assert frame.columns.tolist() == FIXED
        assert len(frame) == 0

    @pytest.mark.parametrize("content", [b"", b"\n\n"])
    def test_an_empty_file_has_the_fixed_columns(self, tmp_path: Path, content: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frame = read_telemetry(write(tmp_path / "t", content), logits=True)
        assert frame.columns.tolist() == FIXED
        assert [str(kind) for kind in frame.dtypes] == ["int64", "int64", "int64", "datetime64[us]", "object"]

    def test_not_a_number_as_python_writes_it(self, tmp_path: Path) -> None:
        values = [math.nan, math.inf, -math.inf, 1e308, 5e-324, 2**70]
        lines = [line(n, gradient_norm={"overall": value}) for n, value in enumerate(values)]
        frame = read_telemetry(write(tmp_path / "t", *lines))
        np.testing.assert_array_equal(frame["gradient_norm.overall"], [float(value) for value in values])

    def test_values_that_are_no_numbers_are_kept(self, tmp_path: Path) -> None:
        lines = [
            line(1, logged={"phase": "2024-01-01", "warm": True, "mixed": 3}),
            line(2, logged={"phase": "main", "warm": None, "mixed": "x"}, extra=4),
            line(3, note=[1, {"a": 2}], status="off"),
        ]
        frame = read_telemetry(write(tmp_path / "t", *lines))
        assert frame["logged.phase"].tolist() == ["2024-01-01", "main", None]
        assert frame["logged.warm"].tolist() == [True, None, None]
        assert frame["logged.mixed"].tolist() == [3, "x", None]
        assert frame["note"].tolist() == [None, None, [1, {"a": 2}]]
        np.testing.assert_array_equal(frame["extra"], [np.nan, 4, np.nan])
        assert frame["status"].tolist() == [None, None, "off"]

    def test_times_of_several_forms(self, tmp_path: Path) -> None:
        given = ["2026-11-16T01:02:03", "2026-11-16T01:02:03.5", "2026-11-16T03:02:03+02:00", "yesterday", 5, None]
        frame = read_telemetry(write(tmp_path / "t", *[line(n, timestamp=when) for n, when in enumerate(given)]))
        known = [
            pd.Timestamp("2026-11-16 01:02:03"),
            pd.Timestamp("2026-11-16 01:02:03.5"),
            pd.Timestamp("2026-11-16 01:02:03"),
        ]
        assert frame["timestamp"].tolist()[:3] == known
        assert frame["timestamp"].isna().tolist() == [False] * 3 + [True] * 3

    def test_the_file_of_the_old_form_has_steps_that_go_on_over_epochs(self, tmp_path: Path) -> None:
        places = [(0, 200), (0, 400), (1, 200), (1, 400), (2, 200)]
        lines = [{"batch_idx": batch, "epoch": epoch, "gradient_norm": {"overall": 1.0}} for epoch, batch in places]
        frame = read_telemetry(write(tmp_path / "t", *lines))
        assert frame["global_step"].tolist() == [200, 400, 600, 800, 1000]
        assert frame["timestamp"].isna().all()

    def test_steps_that_are_given_are_kept_and_the_others_follow_them(self, tmp_path: Path) -> None:
        rows = [(0, 200, None), (0, 400, 450), (1, 200, None), (1, 300, None), (1, 400, 2000), (1, 500, None)]
        lines = [{"batch_idx": batch, "epoch": epoch, "global_step": step} for epoch, batch, step in rows]
        frame = read_telemetry(write(tmp_path / "t", *lines))
        assert frame["global_step"].tolist() == [200, 450, 650, 750, 2000, 2100]

    def test_a_name_twice_in_a_line_counts_the_last_time(self, tmp_path: Path) -> None:
        frame = read_telemetry(write(tmp_path / "t", b'{"batch_idx":1,"epoch":0,"x":1,"x":2}\n'))
        assert frame["x"].tolist() == [2.0]


def by_hand(places: list[tuple[int, int]]) -> list[int]:
    """Steps of an old file, one row after the other."""
    zero = any(batch == 0 for _, batch in places)
    step, before = 0, None
    steps = []
    for epoch, batch in places:
        if before is None:
            step = batch
        elif before[0] == epoch and batch >= before[1]:
            step += batch - before[1]
        else:
            step += batch + (1 if zero else 0)
        before = (epoch, batch)
        steps.append(step)
    return steps


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30))
def test_made_steps_never_decrease(places: list[tuple[int, int]]) -> None:
    epoch, batch = (np.array([place[i] for place in places], dtype=np.int64) for i in (0, 1))
    steps = global_steps(batch, epoch, np.full(len(places), np.nan))
    assert steps.tolist() == by_hand(places)
    assert (np.diff(steps) >= 0).all()


numbers = st.none() | st.floats() | st.integers(-(2**70), 2**70)
leaves = numbers | st.booleans() | st.sampled_from(["", "2024-01-01", "é", '"\n']) | st.lists(numbers, max_size=2)
names = st.sampled_from(["overall", "a", "a.b", "", "名"])
sections = st.none() | st.dictionaries(names, leaves | st.dictionaries(names, numbers, max_size=2), max_size=3)
held_out = st.dictionaries(
    st.sampled_from(["logits", "labels", "predictions", "loss"]),
    st.lists(st.lists(numbers, max_size=2), max_size=3) | st.lists(st.integers(0, 3) | st.none(), max_size=3) | numbers,
)
bodies = st.fixed_dictionaries(
    {"batch_idx": st.integers(0, 5), "epoch": st.integers(0, 2)},
    optional={
        "global_step": st.none() | st.integers(0, 9),
        "timestamp": st.none() | st.sampled_from([f"2026-11-16T01:02:03{end}" for end in ("", ".000004", "Z", "x")]),
        "gradient_norm": sections,
        "logged": sections,
        "holdout_logits": held_out,
        "status": st.none() | st.dictionaries(names, st.none() | st.text(max_size=2), max_size=2),
        "x": leaves,
    },
)  # fmt: skip
pieces = st.lists(
    bodies.map(lambda body: json.dumps(body).encode() + b"\n")
    | st.sampled_from([b"\n", b"{\n", b"\x00{}\n", b'{"a":1}{}\n'])
)


def leaves_of(body: dict[str, Any], logits: bool) -> dict[str, Any]:
    """The numbers of a line by the names of their columns."""
    arrays = () if logits else ("holdout_logits.logits", "holdout_logits.labels", "holdout_logits.predictions")
    leaves: dict[str, Any] = {}
    for name, value in body.items():
        if isinstance(value, dict):
            leaves |= {f"{name}.{key}": inner for key, inner in leaves_of(value, True).items()}
        else:
            leaves[name] = value
    return {name: value for name, value in leaves.items() if name not in arrays}


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces, st.booleans())
def test_every_number_of_every_whole_line_stands_in_its_cell(tmp_path: Path, lines: list[bytes], logits: bool) -> None:
    path = write(tmp_path / "t", *lines)
    bodies = [json.loads(visible_json(line.decode())) for line in lines if b'"batch_idx"' in line]
    damaged = [number for number, line in enumerate(lines, 1) if b'"batch_idx"' not in line and line.strip()]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        frame = read_telemetry(path, logits=logits)
    assert [f"line {number}: " in str(w.message) for w in warned for number in damaged[:10]] == [True] * len(
        damaged[:10]
    )
    assert len(frame) == len(bodies)
    for row, body in enumerate(bodies):
        reasons = {key: reason for key, reason in (body.pop("status", None) or {}).items() if reason is not None}
        assert (frame["status"][row] or {}) == reasons
        for name, value in leaves_of(body, logits).items():
            if name in frame and not ambiguous(name, body) and name not in ("global_step", "timestamp"):
                assert same(frame[name][row], value), (name, frame[name][row], value)


def ambiguous(name: str, body: dict[str, Any]) -> bool:
    """Two numbers of a line may have the same name: {"a.b": 1, "a": {"b": 2}}."""
    return (
        any("a.b" in section or "" in section for section in body.values() if isinstance(section, dict)) or ".a" in name
    )


def same(cell: Any, value: Any) -> bool:
    if isinstance(cell, np.ndarray):
        return np.array_equal(cell.astype(float), np.array(value, dtype=float), equal_nan=True)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return cell is None or math.isnan(cell)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(float(cell) == float(value))
    return bool(cell == value)


def test_a_folder_or_its_file(tmp_path: Path) -> None:
    write(tmp_path / "telemetry.jsonl", line(1))
    (tmp_path / "run.json").write_text("{}")
    assert len(read_telemetry(tmp_path)) == len(read_telemetry(str(tmp_path / "telemetry.jsonl"))) == 1


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ls.RunError, match=r"telemetry\.jsonl is not there.*output_dir"):
        read_telemetry(tmp_path)
    with pytest.raises(ls.RunError, match="missing is not there"):
        read_telemetry(tmp_path / "missing")
