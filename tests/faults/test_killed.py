"""A process killed with SIGKILL at a random point leaves a run that opens and can be continued."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import learnscope as ls
from forked import start_program, wait_until

PROGRAM = Path(__file__).with_name("killed_run.py")
KILLS, MANY_KILLS = 4, 40
"""Of each kind of work."""
WRITE_EVERY = (1, 5, 50)
"""Steps of which records may wait."""


def run_and_kill(work: str, folder: Path, after: float, *options: str) -> int:
    """Start the work, kill it `after` seconds into it; the last number it reported."""
    folder.parent.mkdir(exist_ok=True, parents=True)
    out, error = folder.with_name("out"), folder.with_name("error")
    process = start_program(PROGRAM, work, str(folder), *options, folder=folder.parent, out=out, error=error)
    wait_until(lambda: out.exists() and out.read_text().startswith("ready\n"), process, error)
    time.sleep(after)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, error.read_text()
    return max((int(line) for line in out.read_text().split("\n")[:-1] if line.isdigit()), default=0)


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    return model, torch.optim.Adam(model.parameters())


def go_on(folder: Path, *probes: ls.Probe, step: int | None = None) -> ls.Run:
    """Continue a killed run for one step; nothing that the killed process left half written is there afterwards."""
    model, optimizer = make()
    probes = probes or (ls.LearningRate(every=1),)
    with ls.watch(model, optimizer, run=folder, probes=probes, resume=True, step=step) as w:
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    run = ls.open_run(folder)
    assert w.steps == run.last_step
    assert run.status == "finished"
    leftovers = [path for path in folder.rglob("*.tmp") if path.parent.name != "report"]
    assert [path for path in leftovers if "findings" not in path.name] == []  # a report is written without the lock
    return run


def check_train(folder: Path, after: float) -> None:
    write_every = WRITE_EVERY[round(after * 1000) % len(WRITE_EVERY)]
    reported = run_and_kill("train", folder, after, str(write_every))
    safe = reported if write_every == 1 else max(0, reported - write_every)
    run = ls.open_run(folder)
    lines = (folder / "records.jsonl").read_bytes().split(b"\n")
    whole = [line for line in lines[:-1] if line]
    for line in whole:
        json.loads(line)
    assert len(run.problems) <= 1
    # every step that the process had finished is there, with each of its probes, but for those that may wait
    for probe in ("GradientFlow", "ParameterChange", "LearningRate"):
        steps = [record.step for record in run.records(probe)]
        assert steps[:safe] == list(range(1, safe + 1))
    for record in run.records("Holdout"):
        assert record.arrays is not None
        assert run.arrays("Holdout", record.step)["logits"].shape == (16, 3)
    assert run.manifest["status"] == "running"
    assert run.status == "killed"
    before, last = list(whole), run.last_step

    # resuming goes on with the count and touches nothing before it
    again = go_on(folder)
    lines_after = [line for line in (folder / "records.jsonl").read_bytes().split(b"\n") if line]
    assert lines_after[: len(before)] == before
    assert [record.step for record in again.records()][-1] == last + 1


def check_state(folder: Path, after: float) -> None:
    """Whatever was killed, the checkpoint that is there has its state."""
    reported = run_and_kill("state", folder, after)
    checkpoint = folder.with_name("checkpoint.pt")
    if not checkpoint.exists():
        assert reported == 0
        return
    step = torch.load(checkpoint, weights_only=True)["step"]
    assert step >= reported
    run = go_on(folder, ls.ParameterChange(every=1), step=step)  # a state that is missing would be a warning: an error
    assert run.manifest["attempts"][1]["state_restored"] is True
    assert [record.notes["span"] for record in run.records()][-1] == [step, step + 1]


def check_ledger(folder: Path, after: float) -> None:
    reported = run_and_kill("ledger", folder, after)
    run = ls.open_run(folder)
    assert len(run.problems) <= 1
    if reported:
        examples = run.examples()
        assert len(examples) == 2000
        assert examples["presentations"].min() >= reported
    go_on(folder)


def check_compact(folder: Path, after: float) -> None:
    reported = run_and_kill("compact", folder, after)
    if not (folder / "run.json").exists():
        assert reported == 0
        return
    run = ls.open_run(folder)
    times = Counter(record.step for record in run.records())
    assert set(times) >= set(range(1, reported + 1))
    assert set(times.values()) <= {1}  # no record is read twice
    assert len(run.problems) <= 1
    assert go_on(folder).last_step == max(times, default=0) + 1


def check_report(folder: Path, after: float) -> None:
    reported = run_and_kill("report", folder, after)
    run = ls.open_run(folder)
    assert run.status == "finished"
    assert run.problems == []
    findings = folder / "findings.json"
    if reported:
        assert isinstance(json.loads(findings.read_text()), list)
        assert (folder / "report" / "report.md").read_text().endswith("\n")
    assert run.report().exists()
    go_on(folder)


CHECKS = {
    "train": check_train, "state": check_state, "ledger": check_ledger, "compact": check_compact,
    "report": check_report,
}  # fmt: skip


@pytest.mark.parametrize("work", CHECKS)
def test_a_killed_process_leaves_a_run_that_goes_on(tmp_path: Path, work: str) -> None:
    for seed in range(KILLS):
        CHECKS[work](tmp_path / str(seed) / "run", random.Random(seed).uniform(0.0, 0.8))


@pytest.mark.soak
@pytest.mark.parametrize("work", CHECKS)
def test_many_kills(tmp_path: Path, work: str, record_property: Callable[[str, object], None]) -> None:
    """The same at forty random points each: two hundred."""
    for seed in range(MANY_KILLS):
        CHECKS[work](tmp_path / str(seed) / "run", random.Random(1000 + seed).uniform(0.0, 1.5))
        shutil.rmtree(tmp_path / str(seed))
    record_property("kills", MANY_KILLS)
