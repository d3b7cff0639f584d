"""A full disk, a folder that may not be written, a process that is killed, several that want the same folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import learnscope as ls
from forked import run_program
from learnscope.core.probe import ProbeWarning
from telemetry.loops import Net, batches, lines, telemetry_in, train
from telemetry.programs import BATCHES, PROCESSES, ROUNDS

PROGRAMS = Path(__file__).with_name("programs.py")


def run(name: str, folder: Path, *, fresh: bool = False) -> dict[str, Any]:
    """What a program found out: in a process that is forked, or, for its memory, in one that is started."""
    if fresh:
        command = [sys.executable, str(PROGRAMS), name, str(folder)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    else:
        ended = run_program(PROGRAMS, name, str(folder), folder=Path.cwd())
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_a_full_disk(tmp_path: Path) -> None:
    """Training goes on, one warning, nothing torn; with space again, collection is right again."""
    found = run("full disk", tmp_path / "t")
    assert len(found["warnings"]) == 1, found["warnings"]
    assert "training goes on" in found["warnings"][0]
    assert found["unharmed"]
    assert found["intact"], "what was written before the disk was full is as it was, without a part of a line behind it"
    kept = lines(tmp_path / "t" / "telemetry.jsonl")
    assert [line["global_step"] for line in kept] == [1, 2, 3, 7, 8]
    assert [line["weight_delta_since"] for line in kept[3:]] == [3, 7]
    deltas = [line["weight_delta"]["overall"] for line in kept[3:]]
    assert deltas == pytest.approx([found["deltas"]["7"], found["deltas"]["8"]], rel=1e-6)
    assert not list((tmp_path / "t").glob(".*")), "no half-written file is left behind"
    run_ = ls.open_run(tmp_path / "t")
    assert run_.problems == ["attempt 0 wrote 24 records, 15 are in the folder: 9 could not be written"]
    assert run_.manifest["status"] == "degraded"


def test_a_folder_without_permission() -> None:
    """One that cannot be made, and one that is taken away and given back; also if the tests are run by root."""
    with tempfile.TemporaryDirectory() as folder:
        found = run("without permission", Path(folder))
        assert len(found["closed"]) == 1, found["closed"]
        assert "switched off, training goes on" in found["closed"][0]
        assert "Permission denied" in found["closed"][0]
        assert len(found["losses"]) == 3
        assert found["written"] == []

        assert len(found["taken"]) == 1, found["taken"]
        assert "Permission denied" in found["taken"][0]
        kept = lines(Path(folder) / "own" / "telemetry.jsonl")
        assert [line.get("weight_delta_since") for line in kept] == [None, 1, 2, 2, 2, 5]
        assert [line["weight_delta"]["overall"] for line in kept[1:]] == pytest.approx(found["deltas"], rel=1e-6)


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(ProbeWarning, match="switched off, training goes on") as caught:
        with telemetry_in(tmp_path / "file" / "t", strict=False) as telemetry:
            telemetry.set_holdout_data(batches(1))
            losses = train(model, optimizer, batches(3), telemetry)
    assert len(caught) == 1
    assert len(losses) == 3
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(NotADirectoryError):
        telemetry_in(tmp_path / "file" / "t", strict=True)


def test_processes_that_want_the_same_folder(tmp_path: Path) -> None:
    """Each gets its own; no line of one is in the file of another, and none is lost."""
    assert run("contend", tmp_path)["codes"] == [0] * PROCESSES
    for round_ in range(ROUNDS):
        owners = []
        for number in range(1, PROCESSES + 1):
            folder = tmp_path / (f"round-{round_}" if number == 1 else f"round-{round_}-{number}")
            found = lines(folder / "telemetry.jsonl")
            assert [line["global_step"] for line in found] == list(range(1, BATCHES + 1))
            (owner,) = {line["logged"]["who"] for line in found}
            owners.append(owner)
            assert ls.open_run(folder).problems == []
            assert {record.step for record in ls.open_run(folder).records()} == set(range(1, BATCHES + 1))
        assert sorted(owners) == list(range(PROCESSES))
        assert not (tmp_path / f"round-{round_}-{PROCESSES + 1}").exists()


def test_a_killed_process(tmp_path: Path) -> None:
    """All that it reported as done can be read, and telemetry goes on from there."""
    command = [sys.executable, str(PROGRAMS), "endless", str(tmp_path / "t")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(30):
            assert process.stdout.readline().strip().isdigit()
        process.send_signal(signal.SIGKILL)
        reported = 30 + process.stdout.read().count("\n")
    assert process.returncode == -signal.SIGKILL
    raw = (tmp_path / "t" / "telemetry.jsonl").read_bytes()
    whole = [json.loads(line) for line in raw.split(b"\n")[:-1]]
    assert [line["global_step"] for line in whole][:reported] == list(range(1, reported + 1))
    assert len(whole) <= reported + 1
    assert len(ls.open_run(tmp_path / "t").problems) <= 1
    assert ls.open_run(tmp_path / "t").manifest["status"] == "running"

    kept = torch.load(tmp_path / "t" / "last_checkpoint.pt", weights_only=True)
    model = nn.Linear(100, 100)
    with telemetry_in(tmp_path / "t", resume=True) as telemetry:
        assert telemetry.global_step == whole[-1]["global_step"]
        telemetry.on_batch_end(model, None, whole[-1]["batch_idx"] + 1, 0, global_step=reported + 5)
    assert telemetry.metrics_file.read_bytes().startswith(raw)
    last = json.loads(telemetry.metrics_file.read_bytes().split(b"\n")[-2])
    assert last["global_step"] == reported + 5
    assert last["weight_delta_since"] == kept["step"] in (reported, reported + 1)
    gaps = [p.detach().double().numpy() - kept["model"][name].double().numpy() for name, p in model.named_parameters()]
    expected = np.sqrt(sum((gap**2).sum() for gap in gaps))
    assert last["weight_delta"]["overall"] == pytest.approx(expected, rel=1e-6)
    manifest = ls.open_run(tmp_path / "t").manifest
    assert manifest["status"] == "finished"
    assert len(manifest["attempts"]) == 2
    assert "ended" not in manifest["attempts"][0]


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """25 million parameters, 95 MiB: no second copy of them at any time, though they are compared and written."""
    found = run("memory", tmp_path / "t", fresh=True)
    assert found["collection"] < 64
    assert found["copy"] > 90, "the measure sees a copy"
    assert (tmp_path / "t" / "last_checkpoint.pt").stat().st_size > 1e8
    last = lines(tmp_path / "t" / "telemetry.jsonl")[-1]
    assert last["weight_delta"]["overall"] == pytest.approx(2500.0, rel=1e-6)
    assert last["gradient_norm"]["overall"] == pytest.approx(5000.0, rel=1e-6)
