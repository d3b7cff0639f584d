"""Sinks that sleep, hang, fail or are too slow: what the loop does meanwhile, and what is said at the end."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import learnscope as ls
from forked import run_program, start_program, wait_until
from learnscope.sinks.queued import size_of
from sinks.made import finding, one, record, table, train

PROGRAM = Path(__file__).with_name("hanging.py")


class Noting:
    """Notes in which thread it is called, and with what."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.steps: list[int] = []
        self.closed = 0

    def write(self, record: ls.Record) -> None:
        self.threads.add(threading.get_ident())
        self.steps.append(record.step)

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1


class Blocked(Noting):
    """Hangs in its third call, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write(self, record: ls.Record) -> None:
        super().write(record)
        if len(self.steps) == 3:
            self.let_go.wait(60)


def sinks_of(w: ls.Watch) -> Any:
    return w.run.manifest["attempts"][-1]["sinks"]


def test_the_loop_s_thread_never_calls_a_sink() -> None:
    sink = Noting()
    w = train(20, sinks=[sink], strict=True)
    assert sink.threads
    assert threading.get_ident() not in sink.threads
    assert sink.closed == 1
    assert sink.steps == [each.step for each in w.run.records()], "all, in order"
    assert sinks_of(w) == {"Noting": {"taken": len(sink.steps), "dropped": 0, "errors": 0}}


def test_the_run_folder_has_a_record_before_any_sink(tmp_path: Path) -> None:
    lines = tmp_path / "run" / "records.jsonl"

    class Reading(Noting):
        late = 0

        def write(self, record: ls.Record) -> None:
            super().write(record)
            self.late += record.to_json() not in lines.read_text()

    sink = Reading()
    train(60, sinks=[sink], run=tmp_path / "run", write_every=7, strict=True)
    assert len(sink.steps) > 60
    assert sink.late == 0


def test_a_loop_with_a_sink_that_hangs_finishes_and_the_run_is_complete(tmp_path: Path) -> None:
    """All steps are taken while the sink is in its third call, which it never comes back from."""
    sink, told = Blocked(), []
    with pytest.warns(ls.ProbeWarning, match="Blocked did not take") as caught:
        w = train(20, sinks=[ls.Queued(sink, patience=0.1)], run=tmp_path / "run", alerts=told.append)
    recorded = [each.step for each in ls.open_run(tmp_path / "run").records()]
    assert max(recorded) == 20
    assert len(caught) == 1
    assert len(sink.steps) == 3
    assert sink.closed == 0
    assert sinks_of(w) == {"Blocked": {"taken": 2, "dropped": len(recorded) - 2, "errors": 0}}
    assert f"did not take {len(recorded) - 2} of {len(recorded)} records" in str(caught[0].message)
    assert w.run.status == "finished"
    sink.let_go.set()
    assert len(sink.steps) == 3, "closing gave up: it gets no more"


def test_a_dead_sink_costs_one_warning(tmp_path: Path) -> None:
    class Dead(Noting):
        def write(self, record: ls.Record) -> None:
            super().write(record)
            raise OSError("no route to host")

    sink = Dead()
    with pytest.warns(ls.ProbeWarning, match="Dead failed") as caught:
        w = train(20, sinks=[sink], run=tmp_path / "run")
    assert [str(each.message).splitlines()[-1] for each in caught] == ["OSError: no route to host"]
    assert sinks_of(w) == {"Dead": {"taken": 0, "dropped": 0, "errors": len(sink.steps)}}
    assert len(sink.steps) == len(list(w.run.records()))
    with pytest.raises(RuntimeError, match="no route to host"):
        train(20, sinks=[Dead()], strict=True)


def test_a_sink_that_cannot_be_opened_is_not_called(tmp_path: Path) -> None:
    class Unreachable(Noting):
        def open(self, opening: Any) -> None:
            raise ConnectionError("no such server")

    sink = Unreachable()
    with pytest.warns(ls.ProbeWarning, match="Unreachable failed to open") as caught:
        w = train(8, sinks=[sink], run=tmp_path / "run")
    assert len(caught) == 1
    assert sink.steps == []
    assert sinks_of(w) == {"Unreachable": {"taken": 0, "dropped": len(list(w.run.records())), "errors": 0}}
    with pytest.raises(ConnectionError):
        train(8, sinks=[Unreachable()], strict=True, run=tmp_path / "strict")


class Draws(Noting):
    """Draws at its first record, after a while, and when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def draw(self) -> None:
        torch.rand(1)
        self.drawn.set()

    def write(self, record: ls.Record) -> None:
        if not self.drawn.is_set():
            time.sleep(0.05)
            self.draw()
        super().write(record)

    def close(self) -> None:
        self.draw()


class DrawsWhenOpened(Draws):
    def open(self, opening: Any) -> None:
        self.draw()


@pytest.mark.parametrize("sink", [Draws(), DrawsWhenOpened()])
def test_what_a_sink_draws_when_it_opens_first_writes_and_closes_is_undone(sink: Draws) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.get_rng_state()
    w = ls.watch(model, optimizer, probes=[ls.LearningRate(every=1)], sinks=[sink], write_every=1, strict=True)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert sink.drawn.wait(60)
        assert torch.equal(torch.get_rng_state(), before)
    w.close()
    assert torch.equal(torch.get_rng_state(), before)
    assert len(sink.steps) == 3


def test_a_full_queue_drops_records_and_counts_them() -> None:
    sink = Blocked()
    records = [record(step, one("x", 1.0)) for step in range(1, 11)]
    queue = ls.Queued(sink, limit=5 * size_of(records[0]), patience=60)
    for each in records[:3]:
        queue.write(each)
    while len(sink.steps) < 3:  # it hangs in the third, and two have been taken
        time.sleep(0.001)
    for each in records[3:]:
        queue.write(each)
    assert queue.dropped == 3, "five may wait, of which the third is one"
    sink.let_go.set()
    queue.close()
    assert sink.steps == [1, 2, 3, 4, 5, 6, 7]
    assert (queue.taken, queue.dropped, queue.errors, sink.closed) == (7, 3, 0, 1)
    queue.write(records[0])
    queue.close()
    assert (queue.dropped, sink.closed) == (4, 1)


def test_a_record_counts_by_its_numbers() -> None:
    many = record(1, table("layer", [str(i) for i in range(1000)], "x", [1.0] * 1000))
    assert size_of(many) - size_of(record(1)) == 1000


def test_a_sink_may_take_all_that_waits_at_once_and_alerts_keep_their_place() -> None:
    class Together:
        def __init__(self) -> None:
            self.calls: list[Any] = []
            self.begin = threading.Event()

        def write_all(self, records: Any) -> None:
            self.begin.wait(60)
            self.calls.append([each.step for each in records])

        def write(self, record: ls.Record) -> None:
            raise AssertionError

        def alert(self, finding: ls.Finding) -> None:
            self.calls.append(finding.kind)

        def close(self) -> None:
            self.calls.append("closed")

    sink = Together()
    queue = ls.Queued(sink)
    for step in range(5):
        queue.write(record(step))
    queue.alert(finding())
    queue.write(record(5))
    sink.begin.set()
    queue.close()
    steps = [step for call in sink.calls if isinstance(call, list) for step in call]
    assert steps == [0, 1, 2, 3, 4, 5]
    assert sink.calls[-3:] == ["nonfinite", [5], "closed"]
    assert len(sink.calls) <= 5, "together"
    assert queue.taken == 6


def test_two_sinks_of_a_kind_are_counted_apart_and_a_direct_one_too() -> None:
    first, second = Noting(), Noting()
    w = train(6, sinks=[first, second, ls.ConsoleSink(seconds=1e9)], strict=True)
    accounts = sinks_of(w)
    assert list(accounts) == ["Noting", "Noting_2", "ConsoleSink"]
    assert {tuple(each.values()) for each in accounts.values()} == {(len(first.steps), 0, 0)}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_process_with_a_sink_that_hangs_ends_when_it_is_told_to(tmp_path: Path, name: str) -> None:
    out, error, folder = tmp_path / "out", tmp_path / "error", tmp_path / "run"
    process = start_program(PROGRAM, "signal", str(folder), folder=tmp_path, out=out, error=error)
    wait_until(lambda: out.exists() and "ready" in out.read_text(), process, error)
    assert process.pid is not None
    os.kill(process.pid, getattr(signal, name))
    process.join(120)
    assert process.exitcode is not None, "it hangs"
    run = ls.open_run(folder)
    written = len(list(run.records()))
    assert run.status == ("terminated by SIGTERM" if name == "SIGTERM" else "interrupted by KeyboardInterrupt: ")
    assert run.manifest["attempts"][0]["sinks"]["Hanging"] == {"taken": 0, "dropped": written, "errors": 0}


@pytest.mark.parametrize("way", ["exit", "memory", "fork"])
def test_the_end_of_the_process_delivers_what_waits_and_children_deliver_nothing(tmp_path: Path, way: str) -> None:
    done = run_program(PROGRAM, way, str(tmp_path / "run"), folder=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    steps = [int(line) for line in (tmp_path / "delivered").read_text().split()]
    assert steps == list(range(1, 13)), "once each, the last ones too"
    assert (tmp_path / "closed").read_text() == "1"


def test_a_sink_without_a_warning_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(4, sinks=[Noting()])
