"""SQL over runs: the numbers of `frame`, whatever holds them; nothing else can be read, and nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import learnscope as ls
from learnscope.record import Column, Record, Table
from learnscope.store.backend import FolderBackend, RunError
from learnscope.store.compact import compact
from learnscope.store.folders import find_runs
from learnscope.store.frame import FIXED_COLUMNS, frame_of
from store.awkward import append, plain, records, write_run

TORN = plain(7).to_json().encode()[:60]


def as_rows(run: Path, superseded: bool = False) -> list[tuple[object, ...]]:
    """What SQL has to find, by the reader of records: labels as JSON writes them."""
    found: list[tuple[object, ...]] = []
    for record in ls.open_run(run).records(superseded=superseded):
        for table in record.tables:
            for column in table.columns:
                labels = {key: v if isinstance(v, str) else json.dumps(v) for key, v in column.labels.items()}
                for i, scope in enumerate(table.scopes):
                    value = column.values[i]
                    found.append((
                        record.step, record.epoch, record.attempt, record.source, record.phase, record.probe,
                        table.kind, scope, column.name, None if value is None else float(value),
                        column.status.get(i), record.time, record.cost, labels,
                    ))  # fmt: skip
    return found


def asked(run: Path, table: str = "records") -> list[tuple[object, ...]]:
    answer = ls.query(f"select {', '.join(FIXED_COLUMNS)}, labels from {table}", run)
    return [
        tuple(None if not isinstance(v, dict) and pd.isna(v) else v for v in row)
        for row in answer.itertuples(index=False, name=None)
    ]


RUNS = {
    "written": st.lists(records(), max_size=5), "attempts": st.lists(st.integers(0, 5), min_size=1, max_size=3),
}  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(**RUNS)
def test_the_same_numbers_as_the_reader(written: list[Record], attempts: list[int]) -> None:
    check_numbers(written, attempts)


@pytest.mark.soak
@settings(max_examples=200, deadline=None)
@given(**RUNS)
def test_the_same_numbers_of_many_runs(written: list[Record], attempts: list[int]) -> None:
    check_numbers(written, attempts)


def check_numbers(written: list[Record], attempts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = write_run(Path(place) / "r", written, attempts)
        expected, everything = as_rows(run), as_rows(run, superseded=True)
        assert asked(run) == expected
        assert asked(run, "all_records") == everything
        compact(run)
        assert asked(run) == expected
        assert asked(run, "all_records") == everything


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three runs, one of them compacted, one compacted and gone on."""
    runs = tmp_path / "runs"
    for i, name in enumerate(("a", "b", "deep/c")):
        write_run(runs / name, [plain(step, attempt=i % 2) for step in range(1, 5 + i)], attempts=[0] * (1 + i % 2))
    compact(runs / "b")
    compact(runs / "deep" / "c")
    append(runs / "deep" / "c", [plain(9)])
    return runs


def test_many_runs_in_one_answer(sweep: Path) -> None:
    answer = ls.query("select run, count(*) as n, max(step) as last from records group by run order by run", sweep)
    assert [Path(run).relative_to(sweep).as_posix() for run in answer.run] == ["a", "b", "deep/c"]
    assert list(answer.n) == [16, 20, 28]
    assert list(answer["last"]) == [4, 5, 9]
    for run, mean in ls.query("select run, avg(value) from records group by 1", sweep).itertuples(index=False):
        assert mean == pytest.approx(frame_of(ls.open_run(run).records()).value.mean(), rel=1e-12)


def test_runs_tell_what_their_manifest_says(sweep: Path) -> None:
    answer = ls.query("select * from runs order by run", sweep).set_index("run")
    assert list(answer.status) == ["finished"] * 3
    assert list(answer.source) == ["watch"] * 3
    assert list(answer.model) == ["Net"] * 3
    assert list(answer.parameters) == [10] * 3
    assert list(answer.attempts) == [1, 2, 1]
    assert list(answer.last_step) == [4, 5, 9]
    assert list(answer.records) == [4, 5, 7]
    assert list(answer.damaged) == [0] * 3
    assert list(answer.started) == [1e9] * 3
    assert answer.ended.isna().all()
    schema = ls.query("select manifest ->> '$.schema' as schema from runs", sweep / "a").schema
    assert list(schema) == ["1"]


def test_events_are_records_with_their_errors_and_notes(tmp_path: Path) -> None:
    written = [plain(1), plain(2, tables=[], error="it broke", notes={"skipped_by_budget": 3}), plain(3, attempt=1)]
    run = write_run(tmp_path / "r", written, attempts=[0, 1])
    for _ in range(2):
        answer = ls.query("select * from events order by step", run)
        assert list(answer.step) == [1, 3]
        answer = ls.query("select step, error, notes ->> 'skipped_by_budget' as n, superseded from all_events", run)
        assert answer.values.tolist()[1] == [2, "it broke", "3", True]
        assert list(answer.superseded) == [False, True, False]
        compact(run)


@pytest.mark.parametrize(
    "value", [1e-06, 0.0001, 1e16, 1e22, 0.1, -0.0, 5e-324, 1.0, 3, -7, True, "1e-6", "", 'a"b', "ü"]
)
def test_a_label_is_printed_as_json_prints_it(tmp_path: Path, value: str | float | bool) -> None:
    table = Table("model", ["model"], [Column("x", [1.0], {"it's": value}), Column("y", [2.0])])
    run = write_run(tmp_path / "r", [plain(tables=[table])])
    expected = value if isinstance(value, str) else json.dumps(value)
    for _ in range(2):
        answer = ls.query("select labels['it''s'] as label, value from records order by value", run)
        assert answer.label[0] == expected
        assert pd.isna(answer.label[1])
        compact(run)


@pytest.mark.parametrize("big", [2**53 + 1, 10**30])
def test_numbers_that_parquet_columns_cannot_carry(tmp_path: Path, big: int) -> None:
    run = write_run(tmp_path / "r", [plain(1), plain(2).to_json().replace("[3.0", f"[{big}").encode()])
    before = asked(run)
    assert before == as_rows(run)
    assert before[4][9] == float(big)
    compact(run)
    assert sorted(map(repr, asked(run))) == sorted(map(repr, before))


def test_damaged_lines_are_left_out_with_a_warning(tmp_path: Path) -> None:
    junk = [b"\x00\xff", b"[1]", b"{}", TORN, plain().to_json().replace('"tables"', '"tabls"').encode(), b"", b"  "]
    run = write_run(tmp_path / "r", [plain(1), *junk, plain(2)])
    write_run(tmp_path / "whole", [plain(1)])
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"r: left out 5 lines that are torn or damaged") as caught:
            answer = ls.query("select distinct step from records order by 1", tmp_path)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert list(answer.step) == [1, 2]
        compact(run)


def test_runs_without_records(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [])
    for _ in range(2):
        assert ls.query("select * from records", run).empty
        assert ls.query("select count(*) as n from events", run).n.item() == 0
        answer = ls.query("select records, last_step from runs", run)
        assert answer.records.item() == 0
        assert pd.isna(answer.last_step.item())
        compact(run)


AWKWARD = ["it's", 'q"uo', "lr=0.1", "a[1]", "st*r", "wh?t", "üñ✓", "sp ace", "back\\slash", "{a,b}", "x;--", "$1 100%"]


def test_awkward_paths(tmp_path: Path) -> None:
    for i, name in enumerate(AWKWARD):
        write_run(tmp_path / "runs" / name, [plain(i)])
    for decoy in ("a1", "stxr", "whxt"):
        write_run(tmp_path / "runs" / decoy, [plain(99)])
    for compacted in (False, True):
        for i, name in enumerate(AWKWARD):
            run = tmp_path / "runs" / name
            if compacted:
                compact(run)
            answer = ls.query("select distinct run, step from records", run)
            assert answer.values.tolist() == [[str(run), i]]
    assert len(ls.query("select distinct run from records", tmp_path)) == len(AWKWARD) + 3


def test_finding_runs(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = sweep / "a", sweep / "b", sweep / "deep" / "c"
    write_run(a / "report" / "inner", [plain()])  # belongs to the run above it
    assert find_runs(sweep) == [a, b, c]
    assert find_runs([c, sweep, str(a)]) == [c, a, b]
    assert find_runs(str(sweep / "[ab]")) == [a, b]
    assert find_runs(str(sweep / "**" / "c")) == [c]
    assert find_runs(str(sweep / "*")) == [a, b, c]
    (sweep / "again").symlink_to(a)
    (sweep / "deep" / "loop").symlink_to(sweep)
    assert [path.resolve() for path in find_runs(sweep)] == [a, b, c]
    monkeypatch.chdir(tmp_path)
    assert find_runs("runs/b") == [Path("runs/b")]
    assert list(ls.query("select distinct run from records where run = 'runs/b'").run) == ["runs/b"]
    for nowhere in ("nowhere", "runs/x*", "no/**"):
        with pytest.raises(RunError, match=r"there is no run at .*Name run folders"):
            find_runs(nowhere)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"no run in empty.*run\.json"):
        find_runs("empty")
    with pytest.raises(RunError, match="no runs were named"):
        find_runs([])


def test_a_run_of_a_newer_kind_is_refused_by_name(sweep: Path) -> None:
    (sweep / "a" / "run.json").write_text('{"schema": 99}')
    with pytest.raises(RunError, match=r"a was written with run schema 99"):
        ls.query("select 1", sweep)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("selct 1", "syntax error"),
        ("select stp from records", 'column "stp" not found'),
        ("select * from recrds", "recrds does not exist"),
        ("select 1/'x'", "Could not convert"),
    ],
)
def test_an_error_is_one_line_that_lists_the_columns(sweep: Path, sql: str, says: str) -> None:
    with pytest.raises(RunError, match=says) as caught:
        ls.query(sql, sweep)
    assert "\n" not in str(caught.value)
    assert "records(run, step, epoch, attempt, source, phase, probe, kind, scope, name, value, status" in str(
        caught.value
    )


def test_the_columns_listed_are_the_columns_there_are(sweep: Path) -> None:
    from learnscope.store.views import COLUMNS

    for table, columns in COLUMNS.items():
        assert ", ".join(ls.query(f"select * from {table}", sweep).columns) == columns


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


EVIL = "with a as (copy (select 1) to {name} (use_tmp_file false)) select * from a"


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to {path}", "copy (select 1) to {new}", "export database {new}", "attach {new} as x",
        "create table x as select 1", "insert into runs select * from runs", "delete from runs", "drop view records",
        "set threads = 1", "set enable_external_access = true", "install httpfs", "load httpfs",
        "call pragma_version()", "select 1; select 2", "select 1; copy (select 1) to {new}", "", "-- nothing",
        EVIL.format(name="{path}"), EVIL.format(name="{new}"), EVIL.format(name="'learnscope://0.jsonl'"),
        EVIL.format(name="'learnscope://9.jsonl'"), "with a as (delete from runs returning *) copy a to {path}",
        "select * from read_csv('/etc/passwd')", "select * from '/etc/passwd'", "select * from read_text({path})",
        "select * from read_text({manifest})", "select * from glob('/etc/*')", "select * from read_blob({path})",
        "select * from parquet_metadata({path})", "select * from sniff_csv({path})", "select * from secret_frame",
        "select * from enable_logging(storage='file', storage_path={new})",
    ],
)  # fmt: skip
def test_sql_reads_records_and_can_do_nothing_else(sweep: Path, sql: str) -> None:
    secret_frame = pd.DataFrame({"x": [1]})  # a variable of the caller is no table either
    assert len(secret_frame) == 1
    before = snapshot(sweep.parent)
    names = {"path": sweep / "a" / "records.jsonl", "new": sweep / "new", "manifest": sweep / "a" / "run.json"}
    with pytest.raises(RunError):
        ls.query(sql.format(**{key: f"'{path}'" for key, path in names.items()}), sweep)
    assert snapshot(sweep.parent) == before


def test_a_statement_that_was_serialised_writes_nothing_either(sweep: Path) -> None:
    import duckdb

    evil = EVIL.format(name="'learnscope://0.jsonl'")
    ((body,),) = duckdb.execute("select json_serialize_sql(?::varchar)", [evil]).fetchall()
    before = snapshot(sweep)
    with pytest.raises(RunError, match="SQL may read the records of the runs and nothing else"):
        ls.query(f"select * from json_execute_serialized_sql('{body.replace(chr(39), chr(39) * 2)}')", sweep)
    assert snapshot(sweep) == before


def test_a_run_that_is_being_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [plain(0)], status="running")
    writer, stop = FolderBackend.existing(run), threading.Event()

    def write() -> None:
        step = 1
        while not stop.is_set():
            writer.append(plain(step).to_json())
            step += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        answers = [ls.query("select count(*) as n, max(step) as last from records", run) for _ in range(5)]
    finally:
        stop.set()
        thread.join()
        writer.close()
    counts = [int(answer.n.item()) for answer in answers]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    assert all(answer.n.item() == 4 * (answer["last"].item() + 1) for answer in answers)


def test_lines_longer_than_duckdb_allows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [plain(1), plain(2, notes={"text": "a" * (1 << 24)}), plain(3)])
    assert list(ls.query("select length(notes ->> 'text') as n from events", run).n.fillna(0)) == [0, 1 << 24, 0]


def test_what_does_not_fit_into_memory_goes_to_a_folder_that_is_removed(tmp_path: Path) -> None:
    """And not into the folder one happens to be in."""
    run = write_run(tmp_path / "r", [plain(step) for step in range(5000)])
    code = (
        "import sys, os, duckdb, learnscope as ls\n"
        "real = duckdb.connect\n"
        "def small(*args, **more):\n"
        "    database = real(*args, **more)\n"
        "    database.execute(\"set memory_limit = '80MB'; set threads = 1\")  # each thread has buffers of its own\n"
        "    return database\n"
        "duckdb.connect = small\n"
        "ordered = 'select row_number() over (order by hash(step, i, name)) as k, i from records, range(60) r(i)'\n"
        "print(ls.query(f'select count(*) n from ({ordered}) where k > 0', sys.argv[1]).n.item(), os.listdir('.'))"
    )
    place, temporary = tmp_path / "here", tmp_path / "temporary"
    place.mkdir(), temporary.mkdir()
    result = subprocess.run(
        [sys.executable, "-c", code, str(run)], cwd=place, env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stderr == ""
    assert result.stdout.split() == ["1200000", "[]"]
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("missing", ["duckdb", "pyarrow", "fsspec"])
def test_without_the_packages_the_error_names_the_cure(tmp_path: Path, missing: str) -> None:
    write_run(tmp_path / "r", [plain()])
    code = (
        f"import sys; sys.modules[{missing!r}] = None\nimport learnscope as ls\n"
        "try:\n    ls.query('select 1', sys.argv[1])\nexcept ls.RunError as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"SQL over runs needs {missing}, which is not installed: pip install learnscope[sql]" in result.stdout


def test_threads_do_not_move_each_other(tmp_path: Path) -> None:
    """A database seeks and then reads, from several threads on one handle; what comes after the end is not seen."""
    from learnscope.store.sealed import RunFiles

    (tmp_path / "f.jsonl").write_bytes(b"0123456789")
    files = RunFiles()
    name = files.add(tmp_path / "f.jsonl", 2)
    (tmp_path / "f.jsonl").write_bytes(b"0123456789 and more")
    with files.open(name) as reader:
        reader.seek(4)
        thread = threading.Thread(target=lambda: reader.seek(0) or reader.read(3))
        thread.start()
        thread.join()
        assert reader.read(2) == b"67"
        assert reader.read(100) == b"89"
        assert reader.seek(-3, os.SEEK_END) == 5
        assert reader.read() == b"789"
    with pytest.raises(PermissionError):
        files.open(name, "wb")
    with pytest.raises(PermissionError):
        files.open(str(tmp_path / "f.jsonl"))
