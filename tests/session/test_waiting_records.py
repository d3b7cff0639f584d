"""Records are written together: how many steps and seconds they may wait, and what is never kept back."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.core.moment import Moment
from learnscope.record import Column, Table
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


class Partly(ls.Probe):
    """One number that is there, and one with a reason why it is not."""

    why: str = "nobody has asked"

    def measure(self, moment: Moment) -> Table:
        return Table("model", ["model"], [Column("here", [1.0]), Column("missing", [None], status={0: self.why})])


@pytest.mark.parametrize(("why", "at_once"), [("nobody has asked", 0), ("nan: of one position", 1)])
def test_a_number_that_is_missing_for_a_reason_may_wait(why: str, at_once: int, tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tmp_path / "run"
    with ls.watch(model, optimizer, run=run, probes=[Partly(why=why)], write_seconds=100.0) as w:
        step(model, optimizer)
        assert lines(run) == at_once
        (record,) = w.run.records()
    assert [(column.values, dict(column.status)) for column in record.tables[0].columns] == [
        ([1.0], {}),
        ([None], {0: why}),
    ]


def logged(run: Path, losses: list[float], write_every: int) -> list[tuple[int, float | None]]:
    """The records of these losses."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, run=run, probes=[ls.Loss()], write_every=write_every, write_seconds=100.0) as w:
        for loss in losses:
            step(model, optimizer)
            w.log(loss=loss, other=2)
    return [(record.step, record.tables[0].columns[0].values[0]) for record in w.run.records()]


def test_losses_that_are_recorded_later_are_the_same(tmp_path: Path) -> None:
    losses = [0.1 * k for k in range(7)]
    later, at_once = logged(tmp_path / "later", losses, 50), logged(tmp_path / "once", losses, 1)
    assert later == at_once == [(k + 1, loss) for k, loss in enumerate(losses)]


def test_a_loss_that_is_not_finite_is_not_kept_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ls.watch(model, optimizer, run=run, probes=[ls.Loss()], write_every=50, write_seconds=100.0) as w:
        for loss in (1.0, float("nan"), 2.0, 3.0):
            step(model, optimizer)
            w.log(loss=loss)
        assert lines(run) == 2, "with the one before it; the step of the third has just ended"


def test_a_signal_while_records_are_written_ends_the_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it put off until they are there writes records too, and counts them where they are."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = ls.watch(model, optimizer, run=tmp_path / "run", probes=[ls.LearningRate(every=1), ls.Loss()], strict=True)
    engine, ends = w._engine, []

    def ended() -> None:
        ends.append(engine.writing)
        w.close("terminated by SIGTERM")

    write_lines = engine.backend.write_out

    def struck() -> None:
        if not ends:
            assert engine.writing
            engine.after_writing = ended  # as a signal's handler does
        write_lines()

    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        w.log(loss=1.0)
    monkeypatch.setattr(engine.backend, "write_out", struck)
    engine.write_out()
    assert ends == [False]
    run = ls.open_run(tmp_path / "run")
    assert run.status == "terminated by SIGTERM"
    assert run.problems == []
    assert run.manifest["attempts"][0]["records"]["written"] == len(list(run.records())) == 6


def test_a_record_that_is_announced_and_not_there_yet_is_not_counted(tmp_path: Path) -> None:
    """As when a signal comes between the two."""
    model = nn.Linear(2, 1)
    w = ls.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), run=tmp_path / "run", probes=[ls.Loss()])
    w._engine.hold(1)
    w.close("terminated by SIGTERM")
    run = ls.open_run(tmp_path / "run")
    assert run.problems == []
    assert run.manifest["attempts"][0]["records"]["written"] == 0


@pytest.mark.parametrize("on", [True, False])
def test_writing_many_records_makes_the_collector_look_at_nothing(tmp_path: Path, on: bool) -> None:
    model, optimizer, w = training(tmp_path / "run", write_every=1000, write_seconds=100.0)
    for _ in range(300):
        step(model, optimizer)
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        generations.extend([info["generation"]] if phase == "start" else [])

    before = gc.get_threshold(), gc.isenabled()
    gc.callbacks.append(note)
    try:
        (gc.enable if on else gc.disable)()
        gc.set_threshold(50, 1, 1)
        del generations[:]
        w._engine.write_out()
        seen, is_on = list(generations), gc.isenabled()
    finally:
        gc.set_threshold(*before[0])
        (gc.enable if before[1] else gc.disable)()
        gc.callbacks.remove(note)
    w.close()
    assert lines(tmp_path / "run") == 300
    assert is_on is on
    assert len(seen) <= 1  # when it is switched on again; one for every 50 records otherwise
