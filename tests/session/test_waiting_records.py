"""Records are written together: how many steps and seconds they may wait, and what is never kept back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.session import writing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(writing.time, "time", lambda: now[0])
    return now


def lines(folder: Path) -> int:
    return len((folder / "records.jsonl").read_bytes().splitlines())


def training(folder: Path, **options: object) -> tuple[nn.Module, torch.optim.Optimizer, ls.Watch]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, ls.watch(model, optimizer, run=folder, probes=[ls.LearningRate(every=1)], **options)  # type: ignore[arg-type]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, scale: float = 1.0) -> None:
    optimizer.zero_grad()
    (model(torch.ones(1, 2)) * scale).sum().backward()
    optimizer.step()


def test_records_of_so_many_steps_are_written_together(tmp_path: Path, clock: list[float]) -> None:
    model, optimizer, w = training(tmp_path / "run", write_every=4, write_seconds=100.0)
    seen = []
    for _ in range(9):
        step(model, optimizer)
        seen.append(lines(tmp_path / "run"))
    assert seen == [0, 0, 0, 4, 4, 4, 4, 8, 8]
    w.close()
    assert lines(tmp_path / "run") == 9


def test_records_wait_for_so_many_seconds_at_most(tmp_path: Path, clock: list[float]) -> None:
    model, optimizer, w = training(tmp_path / "run", write_every=1000, write_seconds=2.0)
    waiting = []
    for number in range(1, 40):
        step(model, optimizer)
        waiting.append(number - lines(tmp_path / "run"))
        clock[0] += 0.3
    assert max(waiting) == 6  # the first of them 1.8 seconds ago; notes in run.json come earlier at first
    w.close()


def test_a_slow_loop_has_every_step_on_disk_when_it_ends(tmp_path: Path, clock: list[float]) -> None:
    model, optimizer, w = training(tmp_path / "run")
    for number in range(1, 4):
        clock[0] += 5.0
        step(model, optimizer)
        assert lines(tmp_path / "run") == number
    w.close()


@pytest.mark.parametrize("moment", ["epoch", "state", "run", "close"])
def test_nothing_waits_longer_than(moment: str, tmp_path: Path, clock: list[float]) -> None:
    model, optimizer, w = training(tmp_path / "run", write_seconds=100.0)
    for _ in range(3):
        step(model, optimizer)
    assert lines(tmp_path / "run") == 0
    if moment == "run":
        assert len(list(w.run.records())) == 3
    else:
        {"epoch": w.end_epoch, "state": w.save_state, "close": w.close}[moment]()
    assert lines(tmp_path / "run") == 3


def test_what_is_not_finite_is_written_at_once(tmp_path: Path, clock: list[float]) -> None:
    model, optimizer, w = training(tmp_path / "run", write_seconds=100.0)
    step(model, optimizer)
    step(model, optimizer)
    assert lines(tmp_path / "run") == 0
    w.log(loss=float("nan"))
    step(model, optimizer)
    assert lines(tmp_path / "run") >= 3
    w.close()


def test_counts_in_run_json_are_of_what_is_written(tmp_path: Path, clock: list[float]) -> None:
    model, optimizer, w = training(tmp_path / "run", write_seconds=100.0)
    for _ in range(5):
        step(model, optimizer)
        records = ls.open_run(tmp_path / "run").manifest["attempts"][0].get("records", {"written": 0})
        assert records["written"] <= lines(tmp_path / "run")
    w.close()
    assert ls.open_run(tmp_path / "run").manifest["attempts"][0]["records"] == {"written": 5, "lost": 0}


@pytest.mark.parametrize("wrong", [{"write_every": 0}, {"write_every": 1.5}, {"write_seconds": -1}])
def test_wrong_numbers_are_refused(wrong: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        training(tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()
