"""The table of a run's columns is the table that the record-by-record loop makes, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import learnscope as ls
from learnscope.record import Column, Record, Table
from learnscope.store.columnar import decode as module
from learnscope.store.columnar.column_frame import frame_from
from learnscope.store.duck import LONGEST_LINE, longest_line
from learnscope.store.frame import frame_of
from store.awkward import append, assert_identical, plain, records, write_run

LINE = plain().to_json()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "r"


def fast(folder: Path, probe: str | None = None, name: str | None = None, kind: str | None = None) -> pd.DataFrame:
    """From columns; lines that a session could have written are not read one by one for it."""
    return frame_from(ls.open_run(folder).columns(), probe, name, kind)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.lists(records(), max_size=6), attempts=st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_whatever_was_recorded(written: list[Record], attempts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = write_run(Path(place) / "r", written, attempts)
        run = ls.open_run(folder)
        if not written:
            return
        assert_identical(fast(folder), frame_of(run.records()))
        assert_identical(run.frame(superseded=True), frame_of(run.records(superseded=True)))
        assert_identical(fast(folder, name="norm"), frame_of(run.records(), name="norm"))
        assert_identical(fast(folder, "ε", None, "loss"), frame_of(run.records("ε"), kind="loss"))


def test_batches_and_probes_of_different_shape(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch after batch, with labels that come up late and change their type, and a torn line in the middle."""
    monkeypatch.setattr(module, "NUMBERS_A_SEGMENT", 5000)

    def one(step: int, labels: dict[str, str | float]) -> Record:
        table = Table("model", ["model"], [Column("late" if "late" in labels else "x", [step / 7], labels)])
        return plain(step, probe=f"P{step % 3}", tables=[table])

    written: list[Record | bytes] = [one(step, {"stage": "a"} if step % 2 else {}) for step in range(5000)]
    written += [one(5000 + i, {"late": value}) for i, value in enumerate((1, "one", True))]
    written.insert(2500, LINE.encode()[:40])
    write_run(folder, written)
    run = ls.open_run(folder)
    assert_identical(fast(folder), frame_of(run.records()))
    assert_identical(fast(folder, "P1"), frame_of(run.records("P1")))
    assert_identical(fast(folder, name="late"), frame_of(run.records(), name="late"))
    assert set(map(repr, fast(folder, name="late").late)) == {"1", "'one'", "True"}


def test_nothing_to_show(folder: Path) -> None:
    write_run(folder, [plain(tables=[]), plain(tables=[Table("layer", [], [Column("n", [], {"stage": "x"})])])])
    table = fast(folder)
    assert_identical(table, frame_of(ls.open_run(folder).records()))
    assert table.empty
    assert list(table.columns)[-1] == "stage"


JUNK = [
    b"\x00\xff\xfe", b"[1, 2]", b'{"probe": "P"}', b"nonsense", b'{"probe":1,"tables":3}', b"{}", b"null", b"3",
    LINE.encode()[:-30], LINE.encode() * 2, LINE.replace('"kind"', '"knd"').encode(),
    LINE.replace('"values"', '"vals"').encode(), LINE.replace('"P"', '"\xff"').encode("latin-1"), b"{" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk[:25]))
def test_a_damaged_line_costs_only_itself(folder: Path, junk: bytes) -> None:
    write_run(folder, [plain(1), junk, b"", b"  ", plain(2)])
    append(folder, [plain(3)])
    (folder / "records.jsonl").write_bytes((folder / "records.jsonl").read_bytes() + LINE.encode()[:50])
    run = ls.open_run(folder)
    table = fast(folder)
    assert sorted(set(table.step)) == [1, 2, 3]
    assert_identical(table, frame_of(run.records()))
    run.frame()
    assert run.last_problems == run.problems
    assert [text.split(" is ")[0] for text in run.problems] == ["line 2 of records.jsonl", "line 7 of records.jsonl"]


ODD = [
    LINE.replace('"step":1', '"step":2.5'), LINE.replace('"step":1', '"step":"3"'), LINE.replace('"P"', "7"),
    LINE.replace('"values":[1.5', '"values":[NaN'), LINE.replace('"values":[1.5', '"values":[true'),
    LINE.replace('"values":[1.5', f'"values":[{10**30}'), LINE.replace('"threshold":1e-06', f'"threshold":{10**30}'),
    LINE.replace('"scopes":["a","b"]', '"scopes":"ab"'),
    LINE.replace('"epoch":0', '"epoch":9007199254740993'), LINE.replace('"time":1000000001.0', '"time":17'),
    LINE.replace('"name":"norm"', '"name":7'), LINE.replace('"no gradient"', "3"), LINE.replace('"stepped"', "null"),
]  # fmt: skip


@pytest.mark.parametrize("line", ODD)
def test_what_is_odd_is_read_as_ever(folder: Path, line: str) -> None:
    """Lines that no probe writes and that Python reads all the same: the same table, whichever way it takes."""
    assert json.loads(line) != json.loads(LINE)
    write_run(folder, [line.encode()])
    run = ls.open_run(folder)
    assert_identical(run.frame(), frame_of(run.records()))
    append(folder, [plain(2, epoch=None)])
    assert_identical(run.frame(), frame_of(run.records()))


@pytest.mark.parametrize("change", [('"1":"no', '"2":"no'), ("[1.5,null]", "[1.5]"), ("[0.25", '["x"')])
def test_what_cannot_be_a_table_is_left_out_and_said(folder: Path, change: tuple[str, str]) -> None:
    write_run(folder, [LINE.replace(*change).encode(), plain(2)])
    run = ls.open_run(folder)
    assert set(run.frame().step) == {2}
    assert_identical(run.frame(), frame_of(run.records()))
    assert len(run.problems) == 1
    assert run.problems[0].startswith("line 1 of records.jsonl is torn or damaged")


def test_half_of_a_surrogate_pair_is_shown_as_an_escape(folder: Path) -> None:
    write_run(folder, [LINE.replace('"a","b"', '"\\ud800","b"').encode()])
    run = ls.open_run(folder)
    assert set(run.frame().scope) == {"\\ud800", "b"}
    assert_identical(run.frame(), frame_of(run.records()))


def test_a_line_longer_than_duckdb_allows(folder: Path) -> None:
    long = plain(2, notes={"text": "a" * (LONGEST_LINE + 10)})
    write_run(folder, [plain(1), long, plain(3)])
    path = folder / "records.jsonl"
    assert longest_line(path) == 2 * LONGEST_LINE
    assert longest_line(path, at_least=64) >= LONGEST_LINE + 10
    assert sorted(set(fast(folder).step)) == [1, 2, 3]


def run_python(code: str, *arguments: str) -> str:
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("missing", ["duckdb", "fsspec", "pyarrow"])
def test_lines_are_read_without_the_packages_for_sql(folder: Path, missing: str) -> None:
    write_run(folder, [plain(step) for step in range(20)])
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import learnscope as ls; print(ls.open_run(sys.argv[1]).frame().to_csv())"
    )
    assert run_python(code, str(folder)) == ls.open_run(folder).frame().to_csv().strip()


def test_what_one_reader_knows_of_a_text_does_not_change_another_run(tmp_path: Path) -> None:
    """Runs of one program have the same texts, of which a process reads the first: with labels of its own."""
    for name, label in (("a", 0.0), ("b", -0.0), ("c", 0.5)):
        column = Column("x", [1.0], {"threshold": label})
        write_run(tmp_path / name, [plain(step, tables=[Table("model", ["model"], [column])]) for step in (1, 2)])
        for record in ls.open_run(tmp_path / name).columns().records():
            record.tables[0].scopes.append("of a user")
        frame = ls.open_run(tmp_path / name).frame()
        assert [repr(float(value)) for value in frame["threshold"]] == [repr(label)] * 2
        assert frame["scope"].tolist() == ["model"] * 2
