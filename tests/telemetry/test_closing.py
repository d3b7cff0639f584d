"""How telemetry ends: closed, left, forgotten, or with the program."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from learnscope.telemetry import TelemetryConfig, TrainingTelemetry
from open_files import open_under
from telemetry.loops import Net, lines, telemetry_in


def manifest(folder: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return body


def test_a_context_that_ends_well(tmp_path: Path) -> None:
    with telemetry_in(tmp_path / "t") as telemetry:
        telemetry.on_batch_end(Net(), None, 1, 0)
        assert manifest(tmp_path / "t")["status"] == "running"
    body = manifest(tmp_path / "t")
    assert body["status"] == "finished"
    assert body["attempts"][0]["last_step"] == 1


def test_a_context_that_an_error_ends(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), telemetry_in(tmp_path / "t") as telemetry:
        telemetry.on_batch_end(Net(), None, 1, 0)
        raise ZeroDivisionError("loss was 0")
    assert manifest(tmp_path / "t")["status"] == "interrupted by ZeroDivisionError: loss was 0"
    assert len(lines(telemetry)) == 1


def test_closing_twice_and_batches_after_that_do_nothing(tmp_path: Path) -> None:
    telemetry = telemetry_in(tmp_path / "t")
    telemetry.on_batch_end(Net(), None, 1, 0)
    telemetry.close()
    before = {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()}
    telemetry.close("something else")
    telemetry.on_batch_end(Net(), None, 2, 0)
    assert before == {path: path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert telemetry.global_step == 1


def test_closed_before_the_first_batch(tmp_path: Path) -> None:
    telemetry = telemetry_in(tmp_path / "t")
    telemetry.close()
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["telemetry.jsonl"]
    assert lines(telemetry) == []


def test_forgotten(tmp_path: Path) -> None:
    """Garbage collected: finished, and its folder can be written again."""
    telemetry = telemetry_in(tmp_path / "t")
    telemetry.on_batch_end(Net(), None, 1, 0)
    del telemetry
    gc.collect()
    assert manifest(tmp_path / "t")["status"] == "finished"
    with telemetry_in(tmp_path / "t", resume=True) as again:
        again.on_batch_end(Net(), None, 2, 0)
    assert [line["global_step"] for line in lines(again)] == [1, 2]


def test_forgotten_before_the_first_batch(tmp_path: Path) -> None:
    """Its lock goes with it: the next one gets the folder, and no file stays open."""
    for _ in range(3):
        telemetry = telemetry_in(tmp_path / "t")
        assert telemetry.output_dir == tmp_path / "t"
        assert open_under(tmp_path)
        del telemetry
        gc.collect()
        assert open_under(tmp_path) == []


FORKING = """
import os, sys
from pathlib import Path
import torch
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry

model = torch.nn.Linear(2, 2)
telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=Path(sys.argv[1])), strict=True)
telemetry.on_batch_end(model, None, 1, 0)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print((telemetry.output_dir / "run.json").read_text())
telemetry.on_batch_end(model, None, 2, 0)
"""


def test_a_forked_child_that_ends_does_not_end_the_training(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", FORKING, str(tmp_path / "t")]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["status"] == "running"
    assert [line["global_step"] for line in lines(tmp_path / "t" / "telemetry.jsonl")] == [1, 2]
    assert manifest(tmp_path / "t")["status"] == "finished"


PROGRAM = """
import sys
from pathlib import Path
import torch
from learnscope.telemetry import TelemetryConfig, TrainingTelemetry

def train(folder, error):
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=Path(folder)), strict=True)
    telemetry.on_batch_end(torch.nn.Linear(2, 2), None, 1, 0)
    if error:
        raise ArithmeticError("diverged")
    return telemetry

kept = train(sys.argv[1], False)
train(sys.argv[2], True)
"""


def test_the_program_ends(tmp_path: Path) -> None:
    """One telemetry is forgotten by a program, another in a function that an error leaves and that ends the program."""
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "kept"), str(tmp_path / "broken")]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("ArithmeticError: diverged"), ended.stderr
    for folder in ("kept", "broken"):
        assert len(lines(tmp_path / folder / "telemetry.jsonl")) == 1
        assert manifest(tmp_path / folder)["status"] == "interrupted by ArithmeticError: diverged"
    arguments[2] = PROGRAM.rsplit("\n", 2)[0]  # the same without the error
    arguments[3] = str(tmp_path / "well")
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert manifest(tmp_path / "well")["status"] == "finished"
    assert manifest(tmp_path / "well")["attempts"][0]["last_step"] == 1


def test_half_written_checkpoints_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".last_checkpoint.pt.abc.tmp").write_bytes(b"half")
    (tmp_path / "notes.tmp").write_bytes(b"not ours")
    with TrainingTelemetry(TelemetryConfig(output_dir=tmp_path)):
        assert [path.name for path in tmp_path.glob("*.tmp")] + [path.name for path in tmp_path.glob(".*.tmp")] == [
            "notes.tmp"
        ]


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=Path("t")))
    monkeypatch.chdir(tmp_path / "elsewhere")
    model = torch.nn.Linear(2, 2)
    telemetry.on_batch_end(model, torch.optim.SGD(model.parameters(), lr=0.1), 1, 0)
    telemetry.close()
    assert {path.name for path in (tmp_path / "t").iterdir()} >= {"telemetry.jsonl", "last_checkpoint.pt", "run.json"}
    assert not list((tmp_path / "elsewhere").iterdir())
