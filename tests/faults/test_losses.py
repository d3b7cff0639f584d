"""What is lost is counted and said: no run with lost records looks finished, and training goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

import learnscope as ls
from forked import run_program
from learnscope.store import backend, files

PROGRAM = Path(__file__).with_name("losing_run.py")


def run_case(name: str, tmp_path: Path) -> tuple[str, str]:
    """What the program printed, and its warnings."""
    done = run_program(PROGRAM, name, str(tmp_path / "run"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_a_full_disk_makes_a_run_degraded(tmp_path: Path) -> None:
    out, warned = run_case("disk_full", tmp_path)
    assert out == "60"
    assert "a record could not be written" in warned
    run = ls.open_run(tmp_path / "run")
    records = run.manifest["attempts"][-1]["records"]
    assert run.status == run.manifest["status"] == "degraded"
    assert records["lost"] > 0
    assert records["written"] == len(list(run.records()))
    assert records["written"] + records["lost"] == 120
    lost, there = records["lost"], records["written"]
    assert run.problems == [f"attempt 0 wrote 120 records, {there} are in the folder: {lost} could not be written"]
    finding = next(finding for finding in run.findings() if finding.kind == "records_lost")
    assert finding.title == f"{records['lost']} records of 120 are missing"


def test_weights_that_find_no_room_on_disk_refuse_the_session(tmp_path: Path) -> None:
    """Their file is mapped: without its space taken beforehand, the system would kill the training."""
    out, _ = run_case("no_room_for_weights", tmp_path)
    if out.startswith("no disk of its own"):
        pytest.skip(out)
    refusal, left = out.splitlines()
    assert "snapshot_device='disk' finds no room for 360,000 bytes in" in refusal
    assert refusal.endswith("set TMPDIR to a larger disk, or use snapshot_device='cpu'")
    assert left == "[]"
    assert ls.open_run(tmp_path / "run").status.startswith("interrupted by OSError")


def test_records_that_somebody_cut_off_are_missed(tmp_path: Path) -> None:
    out, warned = run_case("truncated", tmp_path)
    assert out == "20"
    assert "another process cut" in warned
    run = ls.open_run(tmp_path / "run")
    written = run.manifest["attempts"][-1]["records"]["written"]
    there = len(list(run.records()))
    assert run.status == "degraded"
    assert written == 39
    assert f"attempt 0 wrote 40 records, {there} are in the folder: 1 could not be written" in run.problems
    assert len([problem for problem in run.problems if "torn" in problem]) <= 1  # the cut line, and no other


def test_records_removed_after_the_end_are_missed(tmp_path: Path) -> None:
    run_case("without_close", tmp_path)
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "records.jsonl").write_text("".join(lines[:-2]))
    run = ls.open_run(tmp_path / "run")
    assert run.problems == ["attempt 0 wrote 10 records, 8 are in the folder"]
    assert [f.title for f in run.findings() if f.kind == "records_lost"] == ["2 records of 10 are missing"]
    assert "attempt 0 wrote 10 records, 8 are in the folder" in run.report(tmp_path / "report").read_text().lower()


def test_a_removed_folder_is_said_at_the_next_write_and_not_made_again(tmp_path: Path) -> None:
    out, warned = run_case("removed", tmp_path)
    assert out == "10 False"
    assert "was removed while it was being written" in warned


def test_nothing_is_written_into_another_run_of_the_same_name(tmp_path: Path) -> None:
    """A folder that was moved away while its place was taken by another run."""
    model, optimizer = made()
    probe = ls.LearningRate(every=1)
    w = ls.watch(model, optimizer, run=tmp_path / "run", probes=[probe])
    step(model, optimizer)
    (tmp_path / "run").rename(tmp_path / "moved")
    other_model, other_optimizer = made()
    with ls.watch(other_model, other_optimizer, run=tmp_path / "run", probes=[probe]):
        step(other_model, other_optimizer)
    other = (tmp_path / "run" / "run.json").read_bytes()
    step(model, optimizer)
    with pytest.warns(ls.ProbeWarning, match="was moved or removed"):
        w.close()
    assert (tmp_path / "run" / "run.json").read_bytes() == other
    assert len(list(ls.open_run(tmp_path / "moved").records())) == 2


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def refused(*_: Any, **__: Any) -> None:
    raise SafetensorError("Error while serializing: I/O error: Permission denied")


def no_rename(self: Path, _target: Path) -> Path:
    raise PermissionError(errno.EACCES, "Permission denied", str(self))


def not_json(*_: Any, **__: Any) -> None:
    raise TypeError("Object of type set is not JSON serializable")


@pytest.mark.parametrize("error", [no_space, refused, not_json])
def test_a_state_that_cannot_be_saved_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[..., None]
) -> None:
    model, optimizer = made()
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.ParameterChange(every=1)]) as w:
        step(model, optimizer)
        with monkeypatch.context() as patch:
            patch.setattr("learnscope.session.opening.save_file", error)
            with pytest.warns(ls.ProbeWarning, match="the state of step 1 could not be written"):
                assert w.save_state() is None
        step(model, optimizer)
    run = ls.open_run(tmp_path / "run")
    assert run.status == "degraded"
    assert run.manifest["attempts"][0]["files_lost"] == 1
    assert [record.step for record in run.records()] == [1, 2]


def test_a_refused_rename_does_not_end_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of arrays, of the ledger of examples, of the state and of run.json itself."""
    model, optimizer = made()
    holdout = [(torch.ones(3, 4), torch.zeros(3).long())]
    probes = [ls.Holdout(every=1), ls.ExampleLedger(every=1)]
    w = ls.watch(model, optimizer, run=tmp_path / "run", probes=probes, holdout=holdout)
    monkeypatch.setattr(files.Path, "replace", no_rename)
    with pytest.warns(ls.ProbeWarning) as warned:
        for _ in range(3):
            step(model, optimizer)
            w.examples(range(3), model(torch.ones(3, 4)), torch.zeros(3).long())
        w.end_epoch()
        assert w.save_state() is None
        w.close()
    messages = " ".join(str(warning.message) for warning in warned)
    for name in ("arrays of Holdout", "the ledger of examples", "the state of step 3", "run.json"):
        assert f"{name} could not be written" in messages
    monkeypatch.undo()
    run = ls.open_run(tmp_path / "run")
    assert run.status == "killed"  # run.json could not say how it ended, and nobody writes it any more
    assert [record.notes["arrays"] for record in run.records("Holdout")] == ["could not be written"] * 3
    assert not [record.error for record in run.records() if record.error]
    assert list((tmp_path / "run").rglob("*.tmp")) == []


def test_strict_raises_what_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made()
    w = ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.LearningRate(every=1)], strict=True)
    with monkeypatch.context() as patch:
        patch.setattr(files.Path, "replace", no_rename)
        with pytest.raises(PermissionError):
            w.save_state()
    w.close()


def test_a_run_json_that_vanished_is_written_again(tmp_path: Path) -> None:
    model, optimizer = made()
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.LearningRate(every=1)]):
        step(model, optimizer)
        (tmp_path / "run" / "run.json").unlink()
    assert ls.open_run(tmp_path / "run").status == "finished"


def test_run_json_says_meanwhile_how_much_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnscope.session.writing.FIRST_NOTE", 0.0)
    model, optimizer = made()
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.LearningRate(every=1)]):
        step(model, optimizer)
        assert ls.open_run(tmp_path / "run").manifest["attempts"][0]["records"] == {"written": 1, "lost": 0}
        assert ls.open_run(tmp_path / "run").status == "running"


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    model, optimizer = made()
    folder = tmp_path / "run"
    with ls.watch(model, optimizer, run=folder, probes=[ls.LearningRate(every=1)]):
        step(model, optimizer)
    names = [".run.json.abcd_123.tmp", "arrays/.x.safetensors.abcdefgh.tmp", "state/.step-1.safetensors.abcdefgh.tmp"]
    not_ours = [".notes.tmp", "arrays/mine.tmp", ".findings.json.abcdefgh.tmp"]  # the last: a report is being written
    for name in (*names, *not_ours):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("torn")
    in_an_hour = (folder / "report" / ".report.md.abcdefgh.tmp", files._UNLOCKED_SECONDS + 10)
    in_an_hour[0].parent.mkdir()
    in_an_hour[0].write_text("torn")
    old = in_an_hour[0].stat().st_mtime - in_an_hour[1]
    os.utime(in_an_hour[0], (old, old))
    ls.open_run(folder)
    assert (folder / names[0]).exists()  # reading removes nothing
    with ls.watch(model, optimizer, run=folder, probes=[ls.LearningRate(every=1)], resume=True):
        pass
    assert [name for name in names if (folder / name).exists()] == []
    assert not in_an_hour[0].exists()
    assert all((folder / name).exists() for name in not_ours)
    assert backend.FolderBackend.existing(folder).manifest()["status"] == "finished"
