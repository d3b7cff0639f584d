"""Timing by a clock that the tests hold in their hands."""

from __future__ import annotations

import gc
import math

import pytest
import torch
from scipy.stats import binom

from learnscope.model.cost import timing
from learnscope.model.cost.timing import Timed, Times, fixed_threads, is_flat, take_pairs, take_turns


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
    one = take_turns({"a": clock.thing("a", [1.0] * 6 + [0.75, 1.25] * 40, 20.0)}, repeats=10**6, clock=clock)["a"]
    assert (one.warmup, one.warm, len(one.seconds)) == (6, True, 20)
    clock = Clock()
    slow = take_turns({"a": clock.thing("a", [30.0], 20.0)}, repeats=10**6, clock=clock)["a"]
    assert (slow.warmup, slow.warm, len(slow.seconds)) == (1, False, 3), "three passes whatever the budget"


def test_a_setting_that_is_done_leaves_the_others_their_turns() -> None:
    clock = Clock()
    uneven = [1.0] * 6 + [0.75, 1.25] * 40
    things = {"fast": clock.thing("fast", uneven, 8.0), "slow": clock.thing("slow", [2.0], 8.0)}
    found = take_turns(things, repeats=100, clock=clock)
    assert {name: len(times.seconds) for name, times in found.items()} == {"fast": 8, "slow": 4}


def test_passes_end_once_the_median_is_known_unless_a_higher_percentile_is_in_reach() -> None:
    def passes(durations: list[float], seconds: float, repeats: int = 10**6) -> int:
        clock = Clock()
        call = clock.thing("a", [1.0] * 6 + durations, seconds)
        return len(take_turns({"a": call}, repeats=repeats, clock=clock)["a"].seconds)

    assert passes([1.0], 50.0) == 6, "the fewest with an interval of 95 %"
    assert passes([1.0], 60.0) == 59, "an upper bound for P95 is in reach"
    assert passes([1.0], 60.0, repeats=50) == 6
    assert passes([1.0], 400.0) == 299, "and here for P99"
    # after one slow pass the smallest and the largest of nine are left out, before that the interval is wide
    assert passes([2.0, *[1.0] * 80], 50.0) == 9


def test_the_interval_of_a_median_is_that_of_a_binomial_distribution() -> None:
    for count in range(1, 60):
        ranks = binom(count, 0.5)
        below = max((k for k in range(count) if ranks.cdf(k) <= 0.025), default=-1)
        # 1 up to the rank of the interval's low end, then 100: narrow as long as both its ends are among the ones
        for ones in range(count + 1):
            narrow = below >= 0 and (ones <= below or count - 1 - below < ones)
            assert timing._is_narrow([1.0] * ones + [100.0] * (count - ones)) == narrow, (count, ones)


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


def test_a_call_that_is_far_slower_is_timed_a_handful_of_times() -> None:
    """Six pairs have an interval, and it is clearly on one side: 36 times slower is not timed until it is exact."""
    clock = Clock()
    slow = clock.thing("slow", [0.9, 1.1, 1.0, 0.8, 1.2, 1.0], 60.0)
    found = take_pairs(clock.thing("model", [0.03, 0.028], 60.0), {"slow": slow}, repeats=300, clock=clock)
    assert len(found["slow"].seconds) == 6
    value, low, high = found["slow"].interval()
    assert (value, low, high) == (pytest.approx(0.028), pytest.approx(0.028 / 1.2), pytest.approx(0.028 / 0.8))


def test_a_pair_stops_at_its_budget_and_then_has_no_interval() -> None:
    clock = Clock()
    slow = clock.thing("slow", [10.0], 5.0)
    found = take_pairs(clock.thing("model", [0.1], 5.0), {"slow": slow}, repeats=300, clock=clock)
    assert (len(found["slow"].seconds), found["slow"].interval()) == (3, (pytest.approx(0.01), None, None))


def test_a_close_call_is_timed_until_its_interval_is_narrow() -> None:
    clock = Clock()
    close = clock.thing("close", [1.0, 1.3] * 8 + [1.1], 1e9)
    found = take_pairs(clock.thing("model", [1.1], 1e9), {"close": close}, repeats=300, clock=clock)
    value, low, high = found["close"].interval()
    assert low is not None
    assert high is not None
    assert high - low <= 0.05 * value
    assert 17 < len(found["close"].seconds) < 300
    shares = binom.cdf(range(len(found["close"].seconds)), len(found["close"].seconds), 0.5)
    below = int((shares <= 0.025).sum()) - 1
    ratios = sorted(1.1 / seconds for seconds in found["close"].seconds)
    assert low == pytest.approx(ratios[below])


def test_each_copy_stops_by_itself_and_the_model_goes_on_beside_the_others() -> None:
    clock = Clock()
    others = {"far": clock.thing("far", [8.0], 1e9), "near": clock.thing("near", [1.0, 1.4], 1e9)}
    found = take_pairs(clock.thing("model", [1.0, 1.0], 1e9), others, repeats=20, clock=clock)
    assert len(found["far"].seconds) == 6
    assert len(found["near"].base) == len(found["near"].seconds) >= 6
    assert gc.isenabled()
