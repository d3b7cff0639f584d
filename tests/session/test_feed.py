"""What the loop hands over belongs to the step it was computed in, wherever in the loop the call stands."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import learnscope as ls
from learnscope.core.handed import HandedOver
from learnscope.session.steps.feed import Feed


class Loop:
    """A made loop: events in the order of the places, what was completed with its step."""

    def __init__(self) -> None:
        self.done: list[tuple[int, HandedOver]] = []
        self.feed = Feed(lambda step, handed: self.done.append((step, handed)))
        self.steps, self.backward = 0, False

    def log(self, **values: Any) -> None:
        self.feed.add(self.steps, 0, self.backward, logged=values)

    def batch(self, batch: Any) -> None:
        self.feed.add(self.steps, 0, self.backward, batch=batch)

    def step(self) -> None:
        self.steps += 1
        self.backward = False
        self.feed.stepped(self.steps)


PLACES = ("before", "between", "after")
"""Before the backward, between backward and step, after the step."""


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("places", [*itertools.combinations(PLACES, 1), ("before", "between"), ("between", "after")])
def test_every_place_in_the_loop(places: tuple[str, ...], micro: int) -> None:
    """A loop that logs ahead of the backward and again after the step cannot be told apart, and is not here."""
    loop = Loop()
    for number in range(1, 6):
        for part in range(micro):
            if "before" in places:
                loop.log(before=(number, part))
            loop.backward = True
            if "between" in places:
                loop.log(between=(number, part))
                loop.batch(number)
        loop.step()
        if "after" in places:
            loop.log(after=(number, 0))
    loop.feed.flush()
    assert [step for step, _ in loop.done] == [1, 2, 3, 4, 5]
    for step, handed in loop.done:
        assert set(handed.logged) == set(places)
        for name, values in handed.logged.items():
            expected = 1 if name == "after" else micro
            assert values == [(step, part) for part in range(expected)]
        assert (handed.batch, handed.examples) == (step if "between" in places else None, [])


def test_a_step_that_was_not_logged_is_left_out() -> None:
    loop = Loop()
    for number in range(1, 7):
        loop.backward = True
        loop.step()
        if number % 3 == 0:
            loop.log(loss=number)
    loop.feed.flush()
    assert [(step, handed.logged["loss"]) for step, handed in loop.done] == [(3, [3]), (6, [6])]


def test_flushing_twice_completes_once() -> None:
    loop = Loop()
    loop.backward = True
    loop.step()
    loop.log(loss=1)
    loop.feed.flush()
    loop.feed.flush()
    assert len(loop.done) == 1


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("at", ["before_step", "after_step"])
def test_a_backward_of_a_probe_is_not_the_loops(at: Any) -> None:
    """A probe that differentiates at every step must not make a value logged after the step look ahead."""

    class Differentiates(ls.Probe):
        def measure(self, moment: ls.Moment) -> dict[str, float]:
            with torch.enable_grad():
                moment.model(torch.ones(2, 3)).sum().backward()
            return {"done": 1.0}

    model, optimizer = small()
    with ls.watch(model, optimizer, probes=[Differentiates(at=at), ls.Loss()], strict=True) as w:
        for number in range(1, 5):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            w.log(number=float(number))
    frame = w.run.frame("Loss", "number")
    assert list(frame.step) == [1, 2, 3, 4]
    assert list(frame.value) == [1.0, 2.0, 3.0, 4.0]


def test_a_backward_of_a_probe_is_no_micro_batch() -> None:
    class Differentiates(ls.Probe):
        at = "before_step"

        def measure(self, moment: ls.Moment) -> dict[str, float]:
            with torch.enable_grad():
                for _ in range(3):
                    moment.model(torch.ones(2, 3)).sum().backward()
            return {"done": 1.0}

    model, optimizer = small()
    with ls.watch(model, optimizer, probes=[Differentiates(), ls.GradientFlow(every=1)], strict=True) as w:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).square().sum().backward()
            optimizer.step()
    assert list(w.run.frame("GradientFlow", "noise").value) == []
    assert w._loop.passes == 1


def test_examples_and_batches_arrive_detached_and_whole() -> None:
    seen: list[Any] = []

    class Look(ls.Probe):
        needs = frozenset({"examples", "batch"})

        def measure(self, moment: ls.Moment) -> dict[str, float]:
            seen.append((moment.step, moment.batch, *moment.examples))
            return {"n": 1.0}

    model, optimizer = small()
    with ls.watch(model, optimizer, probes=[Look()], strict=True) as w:
        for number in range(3):
            logits = model(torch.ones(2, 3))
            logits.sum().backward()
            w.batch(f"batch {number}")
            w.examples([10 + number, 20 + number], logits, torch.zeros(2))
            optimizer.step()
    assert [(step, batch, ids) for step, batch, ids, _, _ in seen] == [
        (number + 1, f"batch {number}", [10 + number, 20 + number]) for number in range(3)
    ]
    assert not any(logits.requires_grad for *_, logits, _ in seen)


def test_half_fed_probes_wait_and_say_so() -> None:
    class Both(ls.Probe):
        needs = frozenset({"batch", "logged"})

        def measure(self, moment: ls.Moment) -> dict[str, float]:
            raise AssertionError("it was never fed both")

    model, optimizer = small()
    w = ls.watch(model, optimizer, probes=[Both()], strict=True)
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        w.log(loss=1.0)
    with pytest.warns(ls.ProbeWarning, match=r"Both has recorded nothing: call w\.batch\(batch\), w\.log"):
        w.close()
