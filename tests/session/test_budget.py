"""The probes' share of wall time is held. Time is made here: the machine's own is too noisy to test with."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.core.probe import At
from learnscope.session.budget import Budget


@pytest.fixture(autouse=True)
def _made_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping is what makes time pass; nothing else takes any."""
    now, really_sleep, me = [0.0], time.sleep, threading.get_ident()

    def sleep(seconds: float) -> None:
        if threading.get_ident() == me:
            now[0] += seconds
        else:  # someone's background thread
            really_sleep(seconds)

    # waiting for git polls with short sleeps, of which there are then thousands
    monkeypatch.setattr("learnscope.session.manifest._git", lambda: None)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])


class Simulation:
    """A training loop in made time: every step takes `step` seconds, probe i costs `costs[i]`, due every `every[i]`."""

    def __init__(self, share: float | None, step: float, costs: dict[str, float], every: dict[str, int]) -> None:
        self.now, self.step, self.costs, self.every = 0.0, step, costs, every
        self.budget = Budget(share, clock=lambda: self.now)
        self.fired = dict.fromkeys(costs, 0)
        self.due = dict.fromkeys(costs, 0)
        self.highest_late = 0.0

    def run(self, steps: int) -> None:
        for number in range(1, steps + 1):
            self.now += self.step
            for name, cost in self.costs.items():
                if number % self.every[name]:
                    continue
                self.due[name] += 1
                if self.budget.grants(name):
                    self.now += cost
                    self.fired[name] += 1
                    self.budget.charge(name, cost)
            # every probe's first firing is granted: a share can be held once the time for those has passed
            if self.budget.share and self.now > 1.5 * sum(self.costs.values()) / self.budget.share:
                self.highest_late = max(self.highest_late, self.share)

    @property
    def share(self) -> float:
        return sum(self.fired[name] * cost for name, cost in self.costs.items()) / self.now


MIXES: dict[str, tuple[dict[str, float], dict[str, int]]] = {
    "one": ({"a": 0.5}, {"a": 1}),
    "cheap and dear": ({"cheap": 0.002, "dear": 2.0}, {"cheap": 1, "dear": 50}),
    "many cheap, one dear": (
        {"c1": 0.05, "c2": 0.05, "c3": 0.05, "dear": 5.0},
        {"c1": 1, "c2": 1, "c3": 1, "dear": 10},
    ),
    "all dear": ({"a": 3.0, "b": 3.0, "c": 3.0}, {"a": 1, "b": 3, "c": 7}),
    "affordable": ({"a": 0.0001, "b": 0.0002}, {"a": 1, "b": 1}),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_the_share_is_held_and_nobody_starves(mix: str, share: float) -> None:
    costs, every = MIXES[mix]
    made = Simulation(share, 0.1, costs, every)
    made.run(30_000)
    assert made.highest_late <= share * 1.05, "at every moment after the first firings"
    demand = sum(costs[n] * made.due[n] for n in costs) / made.now
    if demand <= share * 0.5:
        assert made.fired == made.due, "what can be afforded is all granted"
        return
    assert made.share >= 0.6 * min(share, demand), "and the budget is made use of"
    ratios = {name: made.fired[name] / made.due[name] for name in costs}
    granted = min(1.0, share / demand)
    for name, ratio in ratios.items():
        # every probe is spaced out by about the same factor, the dear ones too (the first firing comes for nothing)
        assert ratio * made.due[name] >= 0.5 * granted * made.due[name] - 1, (name, ratios)
        assert made.fired[name] <= 2.0 * granted * made.due[name] + 2, (name, ratios)


def test_without_a_budget_everything_is_granted() -> None:
    made = Simulation(None, 0.1, {"a": 100.0}, {"a": 1})
    made.run(50)
    assert made.fired == made.due


def test_a_probe_that_becomes_expensive_is_spaced_out() -> None:
    made = Simulation(0.05, 0.1, {"a": 0.001}, {"a": 1})
    made.run(2000)
    assert made.fired["a"] == 2000
    made.costs["a"] = 1.0
    spent, start = made.budget.spent, made.now
    made.run(20_000)
    assert (made.budget.spent - spent) / (made.now - start) <= 0.06


def test_a_cost_outside_of_a_firing_counts() -> None:
    now = [0.0]
    budget = Budget(0.1, clock=lambda: now[0])
    fired = 0
    for _ in range(5000):
        now[0] += 1.0
        if budget.grants("a"):
            fired += 1
            budget.charge("a", 0.5)
            budget.add("a", 1.5)
            now[0] += 2.0
    assert fired * 2.0 / now[0] == pytest.approx(0.1, rel=0.1)
    assert budget.summary()["seconds"] == pytest.approx(fired * 2.0)


def test_a_share_that_is_none_is_refused() -> None:
    for share in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Budget(share)


class Slow(ls.Probe):
    """Sleeps where it is told to; `slept` is the test's own account of it."""

    where: str = "measure"
    seconds: float = 0.02
    at: At = "after_step"

    def prepare(self, moment: ls.Moment) -> None:
        if self.where == "prepare":
            self.sleep()

    def measure(self, moment: ls.Moment) -> dict[str, float]:
        if self.where == "measure":
            self.sleep()
        return {"done": 1.0}

    def sleep(self) -> None:
        started = time.perf_counter()
        time.sleep(self.seconds)
        SLEPT.append(time.perf_counter() - started)


SLEPT: list[float] = []


@pytest.mark.parametrize("where", ["measure", "prepare"])
def test_a_real_run_with_a_slow_probe(where: str) -> None:
    """15 % of a second and a half: at most one firing of 20 ms (a fiftieth of it) more than that."""
    SLEPT.clear()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probes = [Slow(where=where), ls.LearningRate(every=1)]
    started = time.perf_counter()
    with ls.watch(model, optimizer, probes=probes, budget=0.15, strict=True) as w:
        started = time.perf_counter()
        while time.perf_counter() - started < 1.5:
            optimizer.zero_grad()
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.004)
    wall = time.perf_counter() - started
    share = sum(SLEPT) / wall
    assert 0.04 < share <= 0.15 + 0.03, share
    assert w.steps > 30
    records = list(w.run.records("Slow"))
    assert len(records) == len(SLEPT)
    skipped = sum(record.notes.get("skipped_by_budget", 0) for record in records)
    last = w.steps - records[-1].step
    assert skipped == w.steps - len(records) - last, "every firing that was due and not made is told"
    cost = w.run.manifest["attempts"][-1]["cost"]
    assert cost["budget"] == 0.15
    assert cost["seconds"] >= 0.95 * sum(SLEPT)
    if where == "measure":
        assert all(record.cost == pytest.approx(0.02) for record in records)


def test_a_probe_that_the_loop_feeds_is_held_too() -> None:
    class Fed(Slow):
        needs = frozenset({"logged"})

    SLEPT.clear()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, probes=[Fed()], budget=0.1, strict=True) as w:
        started = time.perf_counter()
        while time.perf_counter() - started < 1.0:
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            w.log(loss=1.0)
            time.sleep(0.004)
    assert sum(SLEPT) / (time.perf_counter() - started) <= 0.1 + 0.04
    records = list(w.run.records("Fed"))
    assert sum(record.notes.get("skipped_by_budget", 0) for record in records) == records[-1].step - len(records)


def test_work_outside_a_firing_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients read before a clip, micro-batches metered in hooks, weights copied for the next comparison."""
    from learnscope.model.weights.snapshot import Snapshot
    from learnscope.session.steps import backwards, clipping

    def slowed(function: Any) -> Any:
        def slow(*args: Any, **kwargs: Any) -> Any:
            time.sleep(0.01)
            return function(*args, **kwargs)

        return slow

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(clipping, "gradient_statistics", slowed(clipping.gradient_statistics))
    monkeypatch.setattr(backwards, "sum_squares", slowed(backwards.sum_squares))
    probes = [ls.GradientFlow(every=1), ls.ParameterChange(every=1)]
    with ls.watch(model, optimizer, probes=probes, strict=True) as w:
        monkeypatch.setattr(Snapshot, "update", slowed(Snapshot.update))
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.ones(3, 4)).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    spent = {label: spending.cost for label, spending in w._engine.budget._probes.items()}
    # three clips; two steps after the first with two micro-batches, two parameters, gradient and sum of each
    assert spent["GradientFlow"] == pytest.approx(0.01 * (3 + 2 * 2 * 2 * 2))
    assert spent["ParameterChange"] == pytest.approx(0.01 * 3)
