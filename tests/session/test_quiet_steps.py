"""Steps at which nothing is measured are counted in few calls, and nothing that is recorded depends on that."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import learnscope as ls
from learnscope.record import Record
from learnscope.session.loop import Loop
from native_builds import needed

PROBES: list[Any] = [
    ls.GradientFlow(every=7), ls.LoopCalls(every=9), ls.LostSteps(), ls.LearningRate(every=11),
    ls.ParameterChange(every=20),
]  # fmt: skip


OURS = str(Path(ls.__file__).parent)


class Training:
    """A loop that mostly does what most loops do."""

    def __init__(self, seed: int, folder: Path | None = None) -> None:
        torch.manual_seed(seed)
        self.chosen = random.Random(seed)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)
        self.w = ls.watch(self.model, self.optimizer, probes=[*PROBES, ls.Loss()], run=folder, strict=True)
        self.counted: list[int] = []

    def loss(self) -> Tensor:
        value: Tensor = self.model(torch.ones(3, 4)).square().mean()
        return value

    def closure(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def step(self) -> None:
        kind = self.chosen.choice(
            ["plain"] * 30 + ["twice", "closure", "stale", "nothing", "discard", "clip", "schedule"]
        )
        if kind == "closure":
            self.optimizer.step(self.closure)
            return
        if kind != "stale":
            self.optimizer.zero_grad(set_to_none=self.chosen.random() < 0.9)
        loss = self.loss()
        for _ in range(2 if kind in ("twice", "discard") else 1):
            if kind != "nothing":
                self.loss().backward()
            if kind == "discard":
                self.optimizer.zero_grad()
                self.loss().backward()
        if kind == "clip":
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        if self.chosen.random() < 0.1:
            self.w.log(before=loss)
        self.optimizer.step()
        if kind == "schedule":
            self.schedule.step()
        if self.chosen.random() < 0.9:
            self.w.log(loss=loss, tokens=3)
        if self.chosen.random() < 0.05:
            self.w.log(loss=float("nan") if self.chosen.random() < 0.3 else 2.0)
        if self.chosen.random() < 0.2:
            self.counted.append(self.w.steps)

    def run(self, steps: int) -> list[Any]:
        with self.w:
            for _ in range(steps):
                self.step()
        return [*self.counted, *sorted(map(_lasting, self.w.run.records()))]


def _lasting(record: Record) -> str:
    """All of it but when it was measured, and what that took."""
    return str((record.step, record.phase, record.probe, record.epoch, record.tables, record.notes, record.error))


@pytest.mark.parametrize("seed", range(12))
def test_all_that_is_recorded_is_as_if_every_step_had_been_looked_at(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Training(seed).run(150)
    monkeypatch.setattr(Loop, "_is_quiet", lambda _self: False)
    assert quiet == Training(seed).run(150)
    assert len(quiet) > 150


def _called(training: Training) -> Iterator[str]:
    """Functions of ours that an ordinary step calls."""
    found: list[str] = []

    def note(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found.append(frame.f_code.co_name)

    training.optimizer.zero_grad()
    loss = training.loss()
    sys.setprofile(note)
    try:
        loss.backward()
        training.optimizer.step()
        training.w.log(loss=loss)
    finally:
        sys.setprofile(None)
    yield from found


@needed
def test_a_quiet_step_calls_hardly_anything() -> None:
    training = Training(0)
    calls = [len(list(_called(training))) for _ in range(60)]
    assert sum(each <= 3 for each in calls) > 10, calls  # as few as `w.log` needs
    training.w.close()


def test_numbers_of_quiet_steps_are_written_in_time(tmp_path: Path) -> None:
    training = Training(0, tmp_path / "run")
    for _ in range(29):
        list(_called(training))
    time.sleep(1.05)
    list(_called(training))  # seen when the loop next takes a step
    steps = [record.step for record in ls.open_run(tmp_path / "run").records() if record.probe == "Loss"]
    training.w.close()
    assert max(steps) == 29


@pytest.mark.parametrize("probes", [[ls.Loss()], [ls.GradientFlow(every=100), ls.LoopCalls(every=100), ls.Loss()]])
def test_a_number_that_is_not_finite_is_written_by_the_next_step(probes: list[Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = ls.watch(model, optimizer, probes=probes, run=tmp_path / "run", write_seconds=1000.0)
    for step in range(1, 12):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if step < 11:
            w.log(loss=float("inf") if step == 10 else 1.0)
    steps = [record.step for record in ls.open_run(tmp_path / "run").records() if record.probe == "Loss"]
    w._loop.detach()
    w._engine.close()
    assert steps == list(range(1, 11))
