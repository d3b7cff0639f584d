"""How a session ends with its process: signals, errors outside `with`, loops that close nothing, forked children."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import learnscope as ls
from forked import run_program, start_program, wait_until

PROGRAM = Path(__file__).with_name("losing_run.py")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_run_and_then_the_process_as_always(tmp_path: Path, name: str) -> None:
    out, error, folder = tmp_path / "out", tmp_path / "error", tmp_path / "run"
    process = start_program(PROGRAM, "waits", str(folder), folder=tmp_path, out=out, error=error)
    wait_until(lambda: out.exists() and "ready" in out.read_text(), process, error)
    time.sleep(0.3)
    assert process.pid is not None
    os.kill(process.pid, getattr(signal, name))
    process.join(60)
    process.kill()  # if it is still there, so that it does not run for ever
    assert process.exitcode == -getattr(signal, name), error.read_text()
    run = ls.open_run(folder)
    assert run.status == run.manifest["status"] == f"terminated by {name}", error.read_text()
    assert run.problems == []
    assert run.manifest["attempts"][0]["records"]["written"] == len(list(run.records()))
    # it may have come between a step and its w.log, or in the middle of writing that of the step before
    assert run.manifest["attempts"][0]["last_step"] - max(record.step for record in run.records("Loss")) <= 2
    assert list(folder.rglob("*.tmp")) == []


def test_a_killed_run_is_called_killed_everywhere(tmp_path: Path) -> None:
    out, error, folder = tmp_path / "out", tmp_path / "error", tmp_path / "run"
    process = start_program(PROGRAM, "waits", str(folder), folder=tmp_path, out=out, error=error)
    records = folder / "records.jsonl"
    wait_until(lambda: out.exists() and "ready" in out.read_text() and records.stat().st_size > 0, process, error)
    assert ls.open_run(folder).status == "running"
    process.kill()
    process.join()
    run = ls.open_run(folder)
    assert run.manifest["status"] == "running"
    assert run.status == "killed"
    assert "killed" in run.report(tmp_path / "report").read_text()
    assert ls.query("select status from runs", folder)["status"].tolist() == ["killed"]
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    assert [facts.status for facts in ls.compare([folder, other]).runs] == ["killed", "killed"]


@pytest.mark.parametrize(
    ("case", "status", "code"),
    [
        ("raises", "interrupted by ValueError: the loop broke after 5 steps", 1),
        ("without_close", "ended without close()", 0),
    ],
)
def test_a_session_that_nobody_closes(tmp_path: Path, case: str, status: str, code: int) -> None:
    done = run_program(PROGRAM, case, str(tmp_path / "run"), folder=tmp_path)
    assert done.returncode == code, done.stderr
    run = ls.open_run(tmp_path / "run")
    assert run.status == status
    assert [record.step for record in run.records("Loss")] == [1, 2, 3, 4, 5]  # the last is known only at the end
    assert run.manifest["attempts"][0]["records"] == {"written": 10, "lost": 0}


def test_a_program_with_its_own_handler_keeps_it(tmp_path: Path) -> None:
    done = run_program(PROGRAM, "own_handler", str(tmp_path / "run"), folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['own']\n"), done.stderr
    assert ls.open_run(tmp_path / "run").status == "finished"


def test_the_handlers_are_restored_when_the_last_session_closes(tmp_path: Path) -> None:
    done = run_program(PROGRAM, "restores", str(tmp_path / "run"), folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True True True\n"), done.stderr


@pytest.mark.parametrize("name", ["closes", "only_exits"])
def test_a_forked_child_leaves_the_run_alone(tmp_path: Path, name: str) -> None:
    done = run_program(PROGRAM, "forks", str(tmp_path / name), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True\n"), done.stdout
    run = ls.open_run(tmp_path / name)
    assert run.status == "finished"
    assert [record.step for record in run.records("LearningRate")] == [1, 2]
    assert run.problems == []
    assert not (tmp_path / name / "state").exists()
