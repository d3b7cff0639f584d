"""Compacting: every record comes back, damaged lines are kept, and no moment leaves a run that cannot be read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import learnscope as ls
from findings.made_run import MadeRun
from learnscope.record import Column, Record, Table
from learnscope.store import compact as module
from learnscope.store import parquet
from learnscope.store.backend import FolderBackend, MemoryBackend, RunError
from learnscope.store.columnar import decode
from learnscope.store.compact import compact
from learnscope.store.frame import frame_of
from store.awkward import append, assert_identical, plain, records, write_run

TORN = plain(7).to_json().encode()[:60]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "r"


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def steps(folder: Path) -> list[int]:
    return [record.step for record in ls.open_run(folder).records(superseded=True)]


def numbers(folder: Path) -> int:
    """How many SQL finds in a run with a damaged line."""
    with pytest.warns(UserWarning, match="left out 1 line"):
        return int(ls.query("select count(*) as n from records", folder).n.item())


@settings(max_examples=30, deadline=None)
@given(written=st.lists(records(), max_size=6), attempts=st.lists(st.integers(0, 5), min_size=1, max_size=3))
def test_every_record_comes_back(written: list[Record], attempts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = write_run(Path(place) / "r", written, attempts)
        run = ls.open_run(folder)
        before, kept, table = list(run.records(superseded=True)), list(run.records()), frame_of(run.records())
        info = compact(folder)
        assert info.records == len(written)
        assert info.rows == sum(1 for record in before for _ in record.rows())
        assert files(folder) == {"run.json", "records.parquet"}
        run = ls.open_run(folder)
        assert list(run.records(superseded=True)) == before
        assert list(run.records()) == kept
        assert_identical(run.frame(), table)


def test_types_of_what_is_recorded_survive(folder: Path) -> None:
    labels: dict[str, str | float] = {"text": "1", "whole": 1, "real": 1.0, "yes": True, "small": 1e-6}
    columns = [Column("counts", [3, None, 0], labels, {1: "nan"}), Column("mixed", [1, 2.5, None])]
    notes = {"span": [0, 1], "nested": {"x": None}, "flag": False}
    write_run(folder, [plain(tables=[Table("tensor", ["a", "b", "c"], columns)], notes=notes, error="it broke")])
    compact(folder)
    (record,) = ls.open_run(folder).records()
    found = record.tables[0].columns[0]
    assert {key: type(value) for key, value in found.labels.items()} == {key: type(v) for key, v in labels.items()}
    assert [type(value) for value in found.values] == [int, type(None), int]
    assert record.tables[0].columns[1].values == [1, 2.5, None]
    assert (record.notes, record.error, record.arrays) == (notes, "it broke", None)


LINE = plain().to_json()


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace("[1.5", f"[{2**53 + 1}"), LINE.replace("[1.5", f"[{10**400}"), LINE.replace("[1.5", "[NaN"),
        LINE.replace('"step":1', '"step":"3"'), LINE.replace('"step":1', f'"step":{2**70}'),
        LINE.replace('"a","b"', '"\\ud800","b"'), LINE.replace('"stepped"', "[1, NaN]"),
        LINE.replace('"epoch":0', '"epoch":0.5'), LINE.replace('"scopes":["a","b"]', '"scopes":"ab"'),
        LINE.replace("[1.5", "[true"), LINE.replace('"tables"', '"notes":null,"tables"'), LINE.replace('"P"', "7"),
    ],
)  # fmt: skip
def test_what_columns_cannot_carry_is_kept_as_it_is(folder: Path, line: str) -> None:
    write_run(folder, [plain(1), line.encode(), plain(2)])
    before = list(map(repr, ls.open_run(folder).records()))
    assert before[1] != repr(plain())
    compact(folder)
    assert list(map(repr, ls.open_run(folder).records())) == before


def test_readers_findings_and_report_see_no_difference(tmp_path: Path) -> None:
    made = MadeRun(FolderBackend.create(tmp_path / "r"), frozen=["base.weight"])
    rng = np.random.default_rng(0)
    for step in range(1, 40):
        made.loss(step, float("nan") if step > 30 else 1 / step)
        made.gradients(step, {"h.0": 1e-9, "h.1": 1.0})
    made.write("Holdout", 40, arrays={"logits": rng.random((3, 2))}, error="the loader is empty")
    made.backend.close()
    append(tmp_path / "r", [TORN])
    shutil.copytree(tmp_path / "r", tmp_path / "c")
    info = compact(tmp_path / "c")
    assert info.bytes_after < info.bytes_before / 3
    old, new = ls.open_run(tmp_path / "r"), ls.open_run(tmp_path / "c")
    assert new.findings() == old.findings()
    assert {finding.kind for finding in new.findings()} >= {"torn_lines", "frozen", "probe_failed"}
    assert_identical(new.frame(), old.frame())
    assert new.problems == old.problems
    assert new.last_step == old.last_step
    assert np.array_equal(new.arrays("Holdout")["logits"], old.arrays("Holdout")["logits"])
    reports = [run.report(tmp_path / run.path.name / "out").read_text() for run in (old, new) if run.path]
    assert reports[0].replace("/r", "/c").replace("# Run r", "# Run c") == reports[1]


def test_a_run_that_is_being_written_is_refused(folder: Path) -> None:
    write_run(folder, [plain()], status="running")
    with pytest.raises(RunError, match=r"still being written.*killed=True"):
        compact(folder)
    assert compact(folder, killed=True).records == 1


@pytest.mark.parametrize("killed", [False, True])
def test_a_locked_run_is_refused(folder: Path, killed: bool) -> None:
    write_run(folder, [plain()])
    writer = FolderBackend.existing(folder)
    writer.append(plain(2).to_json())
    with pytest.raises(RunError, match="being written by another process"):
        compact(folder, killed=killed)
    assert files(folder) == {"run.json", "records.jsonl"}
    writer.append(plain(3).to_json())
    writer.close()
    assert compact(folder).records == 3


def test_a_compacted_run_says_so(folder: Path) -> None:
    write_run(folder, [plain()])
    compact(folder)
    before = (folder / "records.parquet").stat()
    info = ls.open_run(folder).compact()
    assert info.already
    assert "already compacted: 1 record with 4 numbers" in str(info)
    assert (folder / "records.parquet").stat().st_mtime_ns == before.st_mtime_ns


def test_there_must_be_a_run_with_records(folder: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        compact(folder)
    write_run(folder, [])
    (folder / "records.jsonl").unlink()
    with pytest.raises(RunError, match="no records to compact"):
        compact(folder)
    with pytest.raises(ValueError, match="in memory"):
        ls.Run(MemoryBackend()).compact()


def test_damaged_lines_are_kept_and_reported(folder: Path) -> None:
    junk = [b"\x00\xff\xfe", b"[1, 2]", b"  torn \r"]
    write_run(folder, [plain(1), junk[0], b"", junk[1], plain(2)])
    append(folder, [])
    problems = ls.open_run(folder).problems
    info = compact(folder)
    assert info.damaged == 2
    assert "; kept in records.damaged.jsonl: 2 damaged lines" in str(info)
    assert (folder / "records.damaged.jsonl").read_bytes() == junk[0] + b"\n" + junk[1] + b"\n"
    assert ls.open_run(folder).problems == problems
    assert len(problems) == 2
    append(folder, [plain(3), junk[2]])
    assert compact(folder).damaged == 1
    assert (folder / "records.damaged.jsonl").read_bytes() == b"".join(line + b"\n" for line in junk)
    assert len(ls.open_run(folder).problems) == 3
    assert steps(folder) == [1, 2, 3]


def test_a_run_resumed_after_compaction(folder: Path) -> None:
    write_run(folder, [plain(1), plain(2)], attempts=[0, 1])
    compact(folder)
    writer = FolderBackend.existing(folder)
    for step in (2, 3):
        writer.append(plain(step, attempt=1).to_json())
    assert steps(folder) == [1, 2, 2, 3]
    run = ls.open_run(folder)
    assert [(r.step, r.attempt) for r in run.records()] == [(1, 0), (2, 1), (3, 1)]
    assert_identical(run.frame(), frame_of(run.records()))
    writer.close()
    assert compact(folder).records == 4
    assert files(folder) == {"run.json", "records.parquet"}
    assert steps(folder) == [1, 2, 2, 3]


def test_a_crash_before_the_lines_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files are there, with the same records: they are read once, also after the run went on."""
    write_run(folder, [plain(1), TORN, plain(2)])
    expected, problems = list(ls.open_run(folder).records()), ls.open_run(folder).problems

    def crash(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_sync", crash)
        with pytest.raises(KeyboardInterrupt):
            compact(folder)
    assert files(folder) == {"run.json", "records.jsonl", "records.parquet", "records.damaged.jsonl"}
    run = ls.open_run(folder)
    assert list(run.records()) == expected
    assert run.problems == problems
    assert_identical(run.frame(), frame_of(expected))
    assert numbers(folder) == 8
    writer = FolderBackend.existing(folder)
    writer.append(plain(3).to_json())
    writer.close()
    assert steps(folder) == [1, 2, 3]
    assert_identical(run.frame(), frame_of(run.records()))
    assert numbers(folder) == 12
    info = compact(folder)
    assert (info.records, info.damaged) == (3, 0)
    assert "records.jsonl" not in files(folder)
    assert steps(folder) == [1, 2, 3]
    assert (folder / "records.damaged.jsonl").read_bytes() == TORN + b"\n"


def test_compacting_again_ends_what_a_crash_left(folder: Path) -> None:
    write_run(folder, [plain(1)])
    shutil.copy(folder / "records.jsonl", folder.parent / "kept")
    compact(folder)
    shutil.copy(folder.parent / "kept", folder / "records.jsonl")
    assert compact(folder).already
    assert files(folder) == {"run.json", "records.parquet"}
    assert steps(folder) == [1]


@pytest.mark.parametrize("first_other", [0, 39])
def test_other_lines_of_the_same_length_are_not_taken_for_the_old(folder: Path, first_other: int) -> None:
    """Whether they differ at once or only far behind the beginning."""
    write_run(folder, [plain(1)] * 40)
    size = (folder / "records.jsonl").stat().st_size
    compact(folder)
    append(folder, [plain(1)] * first_other + [plain(2)] * (40 - first_other))
    assert (folder / "records.jsonl").stat().st_size == size > 2 * 4096
    assert steps(folder) == [1] * 40 + [1] * first_other + [2] * (40 - first_other)


@pytest.mark.parametrize("broken", ["_write", "_verify", "_keep_damaged"])
def test_an_interruption_leaves_the_lines_alone(folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    write_run(folder, [plain(1), TORN])
    before = (folder / "records.jsonl").read_bytes()

    def interrupt(*arguments: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(module, broken, interrupt)
    with pytest.raises(OSError, match="no space left"):
        compact(folder)
    assert (folder / "records.jsonl").read_bytes() == before
    assert files(folder) - {"records.damaged.jsonl"} == {"run.json", "records.jsonl"}
    monkeypatch.undo()
    assert compact(folder).damaged == 1
    assert (folder / "records.damaged.jsonl").read_bytes() == TORN + b"\n"


@pytest.mark.parametrize("loss", ["labels", "record", "value", "step"])
def test_a_loss_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    write_run(folder, [plain(1), plain(2)])
    before = (folder / "records.jsonl").read_bytes()
    real = module.table

    def lossy(group: Any) -> Any:
        """The table with the last record changed, or without it."""
        [batch] = real(group).combine_chunks().to_batches()
        *others, record = parquet.records_of(batch)
        [table] = record.tables
        *columns, last = table.columns
        if loss == "labels":
            last = replace(last, labels={})
        elif loss == "value":
            last = replace(last, values=[*last.values[:-1], last.values[-1] * (1 + 1e-16) + 2**-52])
        changed = replace(record, tables=[replace(table, columns=[*columns, last])])
        if loss == "step":
            changed = replace(record, step=record.step + 1)
        kept = others if loss == "record" else [*others, changed]
        return pa.Table.from_batches([parquet.batch([(each, b"") for each in kept])])

    monkeypatch.setattr(module, "table", lossy)
    with pytest.raises(RunError, match=r"record \d of .* did not come back .* nothing was changed"):
        compact(folder)
    assert (folder / "records.jsonl").read_bytes() == before
    assert files(folder) == {"run.json", "records.jsonl"}


def test_the_last_step_of_a_compacted_run(folder: Path) -> None:
    """Of a later attempt, superseded steps left out; with a record that columns cannot hold, and with later lines."""
    written = [plain(step) for step in range(50)] + [plain(step, attempt=1) for step in range(20, 31)]
    write_run(folder, written, [0, 19])
    assert (ls.open_run(folder).last_step, compact(folder).records, ls.open_run(folder).last_step) == (30, 61, 30)
    append(folder, [plain(33, attempt=1, notes={"n": 2**60})])
    assert ls.open_run(folder).last_step == 33
    compact(folder)
    assert ls.open_run(folder).last_step == 33


def test_many_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "RECORDS_A_GROUP", 7)
    write_run(folder, [plain(step) for step in range(100)])
    seen: list[tuple[int, int]] = []
    info = compact(folder, progress=lambda done, total: seen.append((done, total)))
    assert (info.records, info.rows) == (100, 400)
    assert steps(folder) == list(range(100))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert all(0 < done <= total for done, total in seen)


def test_a_foreign_or_damaged_parquet_file_is_named(folder: Path) -> None:
    write_run(folder, [plain()])
    compact(folder)
    (folder / "records.parquet").write_bytes((folder / "records.parquet").read_bytes()[:-20])
    with pytest.raises(RunError, match=r"records\.parquet is damaged"):
        list(ls.open_run(folder).records())


def test_a_new_run_does_not_take_its_place(folder: Path) -> None:
    write_run(folder, [plain()])
    compact(folder)
    (folder / "run.json").unlink()
    with pytest.raises(RunError, match="already holds a run"):
        FolderBackend.create(folder)


def test_without_pyarrow_the_error_names_the_cure(folder: Path) -> None:
    write_run(folder, [plain()])
    compact(folder)
    code = (
        "import sys; sys.modules['pyarrow'] = None\nimport learnscope as ls\n"
        "try:\n    list(ls.open_run(sys.argv[1]).records())\nexcept ls.RunError as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert "is a compacted run" in result.stdout
    assert "pip install learnscope[sql]" in result.stdout


def test_what_parquet_says_of_itself(folder: Path) -> None:
    """The file can be read without learnscope."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    write_run(folder, [plain(3)])
    compact(folder)
    (row,) = pq.read_table(folder / "records.parquet").to_pylist()
    assert (row["probe"], row["step"], row["epoch"], row["json"]) == ("P", 3, 0, None)
    (table,) = row["tables"]
    assert table["scopes"] == ["a", "b"]
    assert table["columns"][0]["values"] == [4.5, None]
    assert json.loads(table["columns"][0]["status"]) == {"1": "no gradient"}
    assert json.loads(table["columns"][1]["labels"]) == {"threshold": 1e-6}


def test_an_error_of_the_faster_reader_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads wrongly, it also compares wrongly: lines are parsed once more by another way."""
    write_run(folder, [plain(step) for step in range(1, 30)])
    before = (folder / "records.jsonl").read_bytes()
    real = decode._matrix

    def slightly_wrong(*given: Any) -> Any:
        numbers = real(*given)
        numbers[:, -1] += 1e-9
        return numbers

    monkeypatch.setattr(decode, "_matrix", slightly_wrong)
    with pytest.raises(RunError, match=r"did not come back .* nothing was changed"):
        compact(folder)
    assert (folder / "records.jsonl").read_bytes() == before
