"""`learnscope query` and `learnscope compact`: what they print, what they return, and what they do not import."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from learnscope.cli import main
from learnscope.record import Column, Table
from store.awkward import append, plain, write_run

COUNTS = "select probe, count(*) as n, avg(value) as mean from records group by 1 order by 1"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, [plain(step, probe=f"P{step % 2}") for step in range(1, 41)])
    return tmp_path / "runs"


def test_a_table_by_default(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", COUNTS, str(runs)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["probe", "n", "mean"]
    assert out[1].split() == ["P0", "160", "10.9167"]  # mean of 1.5·step (20 even steps), 0.25 and 1; null left out
    assert out[-1] == "2 rows"


def test_long_answers_say_how_long(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "from records", str(runs)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1 + 50 + 1
    assert out[-1] == "50 of 320 rows; --limit N shows more"
    assert main(["query", "from records", str(runs), "--limit", "7"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "7 of 320 rows; --limit N shows more"
    assert main(["query", "select 1 as one from records limit 1", str(runs / "a")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 row"


def test_csv_keeps_every_digit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("x", [0.1 + 0.2, None], {"stage": 'a,"b'}), Column("y", [1e-300, 3])]
    write_run(tmp_path / "r", [plain(tables=[Table("k", ["s", "t"], columns)])])
    assert main(["query", "select name, value, labels from records", str(tmp_path), "--csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["name", "value", "labels"]
    assert [row[1] for row in rows[1:]] == [repr(0.1 + 0.2), "", "1e-300", "3.0"]
    assert json.loads(rows[1][2]) == {"stage": 'a,"b'}
    assert rows[3][2] == "{}"


def test_json_is_strict(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select step, value, status, labels, epoch from records where step = 3 and name = 'norm' order by scope"
    assert main(["query", sql, str(runs / "a"), "--json"]) == 0
    labels = {"stage": "stepped"}
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == [
        {"step": 3, "value": 4.5, "status": None, "labels": labels, "epoch": 0},
        {"step": 3, "value": None, "status": "no gradient", "labels": labels, "epoch": 0},
    ]
    sql = "select 'nan'::double as a, null::bigint as b, [1, 2] as c, date '2020-01-02' as d, 'inf'::double as e"
    assert main(["query", sql, str(runs / "a"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {"a": None, "b": None, "c": [1, 2], "d": row["d"], "e": None}
    assert row["d"].startswith("2020-01-02")
    assert main(["query", "select * from records where step < 0", str(runs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_runs_are_looked_for_in_runs(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs.parent)
    assert main(["query", "select run from runs order by run", "--csv"]) == 0
    assert capsys.readouterr().out.split() == ["run", "runs/a", "runs/b"]
    assert main(["query", "select run from runs", "runs/[b]", "--csv"]) == 0
    assert capsys.readouterr().out.split() == ["run", "runs/b"]


def test_what_goes_wrong_is_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sql, place, says in (
        ("select stp from records", runs, "records(run, step"),
        ("delete from runs", runs, "one SELECT statement; this is DELETE"),
        ("select 1", runs / "nowhere", "there is no run at"),
    ):
        assert main(["query", sql, str(place)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("learnscope query: ")
        assert captured.err.count("\n") == 1
        assert says in captured.err
    assert main(["query", "select 1", str(runs), "--limit", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


def test_damaged_lines_are_told_apart_from_the_answer(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(runs / "a", [b"torn"])
    assert main(["query", "select count(*) as n from records", str(runs), "--csv"]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["n", "320"]
    assert captured.err == f"learnscope query: {runs / 'a'}: left out 1 line that is torn or damaged\n"


def test_compact_says_what_it_saved(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(runs / "b", [b"torn"])
    assert main(["query", COUNTS, str(runs), "--csv"]) == 0
    before = capsys.readouterr().out
    assert main(["compact", str(runs)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{runs / 'a'}: 40 records with 160 numbers, 0.01 MB before, 0.01 MB now"
    assert second.endswith("; kept in records.damaged.jsonl: 1 damaged line")
    assert not list(runs.rglob("records.jsonl"))
    assert main(["query", COUNTS, str(runs), "--csv"]) == 0
    assert capsys.readouterr().out == before
    assert main(["compact", str(runs / "a")]) == 0
    assert "is already compacted: 40 records" in capsys.readouterr().out


def test_compact_refuses_a_run_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "r", [plain()], status="running")
    assert main(["compact", str(tmp_path / "r")]) == 2
    assert "still being written" in capsys.readouterr().err
    assert main(["compact", str(tmp_path / "r"), "--killed"]) == 0
    assert "1 record with 4 numbers" in capsys.readouterr().out


def test_neither_imports_torch_and_stderr_stays_clean(runs: Path) -> None:
    code = (
        "import sys; from learnscope.cli import main\n"
        "assert main(['query', 'select count(*) from records', sys.argv[1]]) == 0\n"
        "assert main(['compact', sys.argv[1]]) == 0\n"
        "assert main(['query', 'select count(*) from records', sys.argv[1]]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code, str(runs)], capture_output=True, text=True, check=True)
    assert result.stderr == ""


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "learnscope query SQL runs" in out
    assert "learnscope compact runs/a" in out
    for command, says in (("query", "labels['stage']"), ("compact", "--killed")):
        assert main([command, "--help"]) == 0
        assert says in capsys.readouterr().out


def test_the_examples_of_the_help_work(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    monkeypatch.chdir(runs.parent)
    write_run(Path("runs/sweep-1"), [plain()])
    assert main(["query", "--help"]) == 0
    text = capsys.readouterr().out
    examples = [line.split("   ")[0].strip() for line in text.splitlines() if line.startswith("  learnscope query ")]
    assert len(examples) == 5
    for example in examples:
        assert main(shlex.split(example)[1:]) == 0, example
        assert capsys.readouterr().out.strip()
