"""Timing by a clock that the tests hold in their hands."""

from __future__ import annotations

import gc
import math

import pytest
import torch

from learnscope.model.cost import timing
from learnscope.model.cost.timing import Timed, Times, fixed_threads, is_flat, take_turns


class Clock:
    """Stands still but for what is run under it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    def thing(self, name: str, durations: list[float], seconds: float, *, after: float = 0.0) -> Timed:
        """Takes each of the durations in turn, then the last for ever; `after` is what putting things back takes."""
        left = list(durations)

        def run() -> None:
            self.ran.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        def back() -> None:
            self.now += after

        return Timed(run, seconds, back)


def test_percentiles_are_by_nearest_rank_and_only_where_samples_bear_them() -> None:
    by_hand = {1: 1, 2: 1, 3: 2, 4: 2, 59: 30, 299: 150, 300: 150}
    for n, median in by_hand.items():
        times = Times([float(value) for value in range(n, 0, -1)])
        assert times.percentile(0.5) == median
        assert times.percentile(0.95) == (None if n < 59 else {59: 57, 299: 285, 300: 285}[n])
        assert times.percentile(0.99) == (None if n < 299 else {299: 297, 300: 297}[n])
        assert times.mean == (n + 1) / 2
    assert [0.95**59 <= 0.05 < 0.95**58, 0.99**299 <= 0.05 < 0.99**298] == [True, True], "so many are needed"


def test_settings_take_turns_and_what_is_put_back_is_not_timed() -> None:
    clock = Clock()
    things = {name: clock.thing(name, [seconds], 1e9, after=50.0) for name, seconds in (("a", 1.0), ("b", 3.0))}
    found = take_turns(things, repeats=4, clock=clock)
    assert found["a"].seconds == [1.0] * 4
    assert found["b"].seconds == [3.0] * 4
    warmups = found["a"].warmup + found["b"].warmup
    assert clock.ran[warmups:] == ["a", "b"] * 4


def test_the_warm_up_lasts_until_the_median_is_flat() -> None:
    clock = Clock()
    slow_start = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    found = take_turns({"a": clock.thing("a", slow_start, 1e9)}, repeats=5, clock=clock)["a"]
    # by hand: passes 8, 9, 10 take 2, 1, 1 and passes 11, 12, 13 take 1, 1, 1, whose medians agree for the first time
    assert found.warmup == 13
    assert found.warm
    assert found.seconds == [1.0] * 5, "nothing of the slow start is timed"
    assert is_flat([1, 1, 1, 1.04, 1.04, 9])
    assert not is_flat([1, 1, 1, 1.06, 1.06, 1.06])
    assert not is_flat([1, 1, 1, 1, 1])


def test_the_warm_up_and_the_passes_end_with_the_budget() -> None:
    clock = Clock()
    growing = [float(2**i) for i in range(80)]
    never = take_turns({"a": clock.thing("a", growing, math.inf)}, repeats=1, clock=clock)["a"]
    assert (never.warmup, never.warm) == (timing.MOST_WARMUPS, False)
    clock = Clock()
    one = take_turns({"a": clock.thing("a", [1.0], 20.0)}, repeats=10**6, clock=clock)["a"]
    assert (one.warmup, one.warm, len(one.seconds)) == (6, True, 20)
    clock = Clock()
    slow = take_turns({"a": clock.thing("a", [30.0], 20.0)}, repeats=10**6, clock=clock)["a"]
    assert (slow.warmup, slow.warm, len(slow.seconds)) == (1, False, 3), "three passes whatever the budget"


def test_a_setting_that_is_done_leaves_the_others_their_turns() -> None:
    clock = Clock()
    things = {"fast": clock.thing("fast", [1.0], 8.0), "slow": clock.thing("slow", [2.0], 8.0)}
    found = take_turns(things, repeats=100, clock=clock)
    assert {name: len(times.seconds) for name, times in found.items()} == {"fast": 8, "slow": 4}


def test_threads_and_the_garbage_collector_are_as_before_also_after_an_error() -> None:
    before = torch.get_num_threads()
    states = []

    def run() -> None:
        states.append((gc.isenabled(), torch.get_num_threads()))
        raise KeyError

    with pytest.raises(KeyError), fixed_threads(before + 1) as used:
        assert used == before + 1
        take_turns({"a": Timed(run, 1.0)}, repeats=1)
    assert states == [(False, before + 1)]
    assert gc.isenabled()
    assert torch.get_num_threads() == before
