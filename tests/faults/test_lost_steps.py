"""A step that never happens, lost in eight ways and one more: its tensor, its loss and its rows are on disk."""

from __future__ import annotations

import ast
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import learnscope as ls
from forked import run_program
from learnscope.reading.lost import lost_steps

PROGRAM = Path(__file__).with_name("lost_run.py")
ENDS = {
    "skipped": 0, "scaled": 0, "scaled_fused": 0, "asserted": 1, "raises": 1, "interrupted": 1,
    "terminated": -signal.SIGTERM, "killed": -signal.SIGKILL, "exits": 3,
}  # fmt: skip
"""How the process ends, by the way in which it loses its step."""
UNKNOWN = {"killed", "exits"}
"""Those that nobody could say anything after."""
SEEDS, MANY_SEEDS = 2, 25


def check(way: str, seed: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    done = run_program(PROGRAM, way, str(seed), str(folder / "run"), folder=folder)
    assert done.returncode == ENDS[way], done.stderr
    expected = ast.literal_eval(done.stdout.splitlines()[0])
    run = ls.open_run(folder / "run")
    assert run.problems == []
    (lost,) = lost_steps(run)
    assert (lost.step, lost.tensor, lost.rows) == (expected["step"], expected["tensor"], expected["rows"])
    assert lost.loss == pytest.approx(expected["loss"], rel=1e-6)
    assert lost.skipped is (None if way in UNKNOWN else True)
    assert run.rows_of_step(expected["step"]) == expected["rows"]
    names = {row.scope for record in run.records("LostSteps") for row in record.rows() if row.kind == "tensor"}
    assert names == {expected["tensor"]}
    goes_on = way in ("skipped", "scaled", "scaled_fused")
    assert run.last_step == (19 if goes_on else run.manifest["attempts"][0].get("last_step", run.last_step))
    if way not in UNKNOWN:
        assert run.manifest["attempts"][0]["last_step"] == (19 if goes_on else expected["step"] - 1)
    if goes_on:  # the loss of the step that took its place is its own
        losses = run.frame("Loss", "loss")
        assert losses["step"].tolist() == list(range(1, 20))
        assert expected["loss"] not in losses["value"].tolist()
        assert run.frame("Loss", "loss_std").empty


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("way", ENDS)
def test_a_lost_step_is_on_disk(tmp_path: Path, way: str, seed: int) -> None:
    check(way, seed, tmp_path / "case")


@pytest.mark.soak
@pytest.mark.parametrize("way", ENDS)
def test_many_lost_steps(tmp_path: Path, way: str, record_property: Callable[[str, object], None]) -> None:
    for seed in range(MANY_SEEDS):
        check(way, seed, tmp_path / str(seed))
    record_property("lost steps", MANY_SEEDS)


def test_a_run_goes_on_before_the_step_that_was_lost(tmp_path: Path) -> None:
    done = run_program(PROGRAM, "killed", "4", str(tmp_path / "run"), folder=tmp_path)
    expected = ast.literal_eval(done.stdout.splitlines()[0])
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = ls.open_run(tmp_path / "run").last_step
    with ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.LearningRate(every=1)], resume=True) as w:
        assert w.steps == before <= expected["step"] - 1
        for _ in range(expected["step"]):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    run = ls.open_run(tmp_path / "run")
    assert lost_steps(run) == []  # superseded by what went on
    assert [r.step for r in run.records("LostSteps", superseded=True) if r.phase == "skipped"] == [expected["step"]]
    assert run.last_step == w.steps
    run.compact()
    assert ls.open_run(tmp_path / "run").last_step == w.steps
