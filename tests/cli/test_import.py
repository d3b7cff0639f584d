"""`learnscope import`: what it prints, writes and refuses; nothing is overwritten, nothing left after an error."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import learnscope as ls
from learnscope.cli import main
from learnscope.importing import writing


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.csv"
    path.write_text("step,loss,val_loss,x[red]\n" + "".join(f"{s},{3 / (s + 1)},,{s}\n" for s in range(30)))
    return path


def test_it_says_what_became_what_and_where_it_is(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "mine.csv", "--out", "runs/a"]) == 0
    told = capsys.readouterr().out
    rows = [line.split() for line in told.splitlines()]
    assert ["loss", "Loss.loss", "30"] in rows
    assert ["x[red]", "kept", "under", "its", "own", "name", "30"] in rows
    assert "steps: step" in told
    assert "written: runs/a\nsee it: learnscope report runs/a" in told
    assert main(["report", "runs/a"]) == 0
    assert ls.open_run("runs/a").last_step == 29


def test_runs_that_are_there_are_never_overwritten(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        assert main(["import", "mine.csv", "--quiet"]) == 0
    assert capsys.readouterr().out.split() == ["runs/mine", "runs/mine-2", "runs/mine-3"]
    (table.parent / "full").mkdir()
    (table.parent / "full" / "notes.txt").write_text("mine")
    assert main(["import", "mine.csv", "--quiet", "--out", "full"]) == 0
    assert capsys.readouterr().out.split() == ["full-2"], "a folder of other things is left alone"
    (table.parent / "empty").mkdir()
    assert main(["import", "mine.csv", "--quiet", "--out", "empty"]) == 0
    assert capsys.readouterr().out.split() == ["empty"]


def test_a_folder_of_many_is_imported_as_many(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (table.parent / "logs" / name).mkdir(parents=True)
        (table.parent / "logs" / name / "metrics.csv").write_text("step,loss\n1,2\n")
    (table.parent / "logs" / "c").mkdir()
    (table.parent / "logs" / "c" / "metrics.csv").write_text("")
    (table.parent / "logs" / "data.csv").write_text("these,are\nno,logs\n")
    assert main(["import", "logs", "--out", "out", "--map", "loss=Loss.loss", "--quiet"]) == 2
    told = capsys.readouterr()
    assert told.out.split() == ["out/a", "out/b"]
    assert "c was not imported" in told.err
    assert "is empty" in told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mne.csv"], "did you mean mine.csv?"),
        (["mine.csv", "--format", "tensorbord"], "Did you mean 'tensorboard'?"),
        (["mine.csv", "--map", "loss"], "'loss' is not NAME=QUANTITY"),
        (["mine.csv", "--map", "los=Loss.loss"], "Did you mean 'loss'?"),
        (["empty"], "there is nothing to import"),
        pytest.param(
            ["mine.csv", "--format", "wandb"],
            "is no file of wandb",
            marks=pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed here"),
        ),
        (["mine.csv", "--format", "trainer"], "line 1, is no JSON"),
        (["bad.json"], "entry 2 of log_history: its step is None"),
        (["runs/old"], "is a run of learnscope already"),
        (["notes.txt"], "Say what it is: --format"),
    ],
)
def test_mistakes_are_answered_with_what_is_there(
    table: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (table.parent / "empty").mkdir()
    (table.parent / "notes.txt").write_text("x")
    (table.parent / "bad.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 1.0}, {"loss": 2.0}]}))
    ls.import_run(table, "runs/old")
    assert main(["import", *arguments, "--out", "new"]) == 2
    assert message in capsys.readouterr().err
    assert not [path for path in table.parent.rglob("*") if path.name.startswith((".import", "new"))]


def test_an_error_in_the_middle_leaves_nothing(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "manifest", full)
    assert main(["import", "mine.csv", "--out", "runs/a"]) == 2
    assert list((table.parent / "runs").iterdir()) == []


def test_imports_at_the_same_moment_get_names_of_their_own(table: Path) -> None:
    """In processes of their own, which a pool of this one could not have: it would import the tests again."""
    program = "import sys, learnscope as ls; print(ls.import_run(sys.argv[1], sys.argv[2]).path)"
    command = [sys.executable, "-c", program, str(table), str(table.parent / "runs" / "a")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], ended
    places = [Path(out.split()[-1]) for out, _ in ended]
    assert {place.name for place in places} == {"a", "a-2", "a-3"}
    assert all(ls.open_run(place).last_step == 29 for place in places)
