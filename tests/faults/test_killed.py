"""A process killed with SIGKILL at a random point leaves a run that opens and can be continued."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch

import learnscope as ls
from forked import start_program

PROGRAM = Path(__file__).with_name("killed_run.py")


def run_and_kill(folder: Path, after: float) -> int:
    """Start the run, kill it `after` seconds into its recording; the last step it reported."""
    folder.parent.mkdir(exist_ok=True)
    out, error = folder.with_name("out"), folder.with_name("error")
    process = start_program(PROGRAM, str(folder), folder=folder.parent, out=out, error=error)
    while not (out.exists() and out.read_text().startswith("ready\n")):
        assert process.is_alive(), error.read_text()
        time.sleep(0.01)
    time.sleep(after)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return max((int(line) for line in out.read_text().split("\n")[:-1] if line.isdigit()), default=0)


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_run_opens_and_loses_at_most_the_last_line(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "run"
    reported = run_and_kill(folder, random.Random(seed).uniform(0.05, 0.8))
    run = ls.open_run(folder)
    lines = (folder / "records.jsonl").read_bytes().split(b"\n")
    whole = [line for line in lines[:-1] if line]
    for line in whole:
        json.loads(line)
    assert len(run.problems) <= 1
    # every step that the process had finished is there, with each of its probes
    for probe in ("GradientFlow", "ParameterChange", "LearningRate"):
        steps = [record.step for record in run.records(probe)]
        assert steps[:reported] == list(range(1, reported + 1))
    for record in run.records("Holdout"):
        assert record.arrays is not None
        assert run.arrays("Holdout", record.step)["logits"].shape == (16, 3)
    assert run.manifest["status"] == "running"
    before = list(whole)

    # resuming goes on with the count and touches nothing before it
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters())
    last = run.last_step
    with ls.watch(model, optimizer, run=folder, probes=[ls.LearningRate(every=1)], resume=True) as w:
        assert w.steps == last
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    after = [line for line in (folder / "records.jsonl").read_bytes().split(b"\n") if line]
    assert after[: len(before)] == before
    assert [record.step for record in ls.open_run(folder).records()][-1] == last + 1
    assert ls.open_run(folder).manifest["status"] == "finished"


@pytest.mark.soak
def test_many_kills(tmp_path: Path) -> None:
    """The same at a hundred random points."""
    for seed in range(100):
        test_a_killed_run_opens_and_loses_at_most_the_last_line(tmp_path / str(seed), 1000 + seed)
