"""Timing several calls side by side: warm-up, taking turns, percentiles only with enough samples."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch

from learnscope.model.collector import no_collection

WINDOW = 3
"""Samples of a rolling median; two windows that agree within `FLAT` are flat."""
FLAT = 0.05
MOST_WARMUPS = 50
WARMUP_SHARE = 0.25
"""Share of the budget for warm-up; only one pass if the whole budget would not even fill two windows."""
LEAST = 3
"""Minimum number of samples, for any budget."""
NARROW = 0.05
"""Width of the 95 % interval of the median, as a share of it, at which a call that asks for no more has been timed."""
CLEAR = 1.25
"""Ratio of two calls, or its inverse, beyond which an interval is clearly on one side."""
NEEDED = {0.95: 59, 0.99: 299}
"""Number of samples whose maximum is above the percentile in 95 of 100 cases: pⁿ ≤ 0.05."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Timed:
    """A call to time. `after` restores what `run` changed and is not timed; `seconds` is the budget.

    It ends before its budget once its median is known to `NARROW`, where the budget does not suffice for a higher
    percentile.
    """

    run: Callable[[], object]
    seconds: float
    after: Callable[[], object] | None = None
    tokens: int | None = None
    flops: int | str = "not counted"
    """Operations of the call, or why they could not be counted."""
    ran: Sequence[float] = ()
    """Seconds of passes that were run before, which count as warm-up."""


@dataclass(slots=True)
class Times:
    """Seconds of each pass, the number of warm-up passes before them, and whether these had become stable."""

    seconds: list[float] = field(default_factory=list)
    warmup: int = 0
    warm: bool = False

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seconds)

    def percentile(self, share: float) -> float | None:
        """By nearest rank: the ⌈share·n⌉-th smallest; None if there are too few samples."""
        if len(self.seconds) < NEEDED.get(share, 1):
            return None
        return sorted(self.seconds)[math.ceil(round(share * len(self.seconds), 9)) - 1]


def _seconds_of(call: Timed, wait: Callable[[], None], clock: Callable[[], float]) -> float:
    """How long one run takes, until the device has done it; what comes after it is not timed."""
    wait()
    began = clock()
    call.run()
    wait()
    seconds = clock() - began
    if call.after is not None:
        call.after()
    return seconds


def take_turns(
    calls: Mapping[Key, Timed],
    *,
    repeats: int,
    wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Key, Times]:
    """Warm each up, then time all of them in turn, so that other load on the machine affects all equally.

    Each runs until it has used its budget, run `repeats` times, or its median is known (see `Timed`), at least `LEAST`
    times. `wait` waits for the device.
    The garbage collector is off meanwhile.
    """

    seconds_of = partial(_seconds_of, wait=wait, clock=clock)

    with no_collection():
        times = {key: _warmed_up(call, seconds_of) for key, call in calls.items()}
        spent = dict.fromkeys(calls, 0.0)
        left = list(calls)
        while left:
            for key in left:
                times[key].seconds.append(seconds_of(calls[key]))
                spent[key] += times[key].seconds[-1]
            left = [key for key in left if not _is_done(times[key].seconds, spent[key], calls[key].seconds, repeats)]
    return times


@dataclass(slots=True)
class Ratio:
    """Seconds of a call and of the one that it is compared with, pass by pass in turn."""

    base: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def interval(self) -> tuple[float, float | None, float | None]:
        """Median of base / seconds over the pairs, and its 95 % interval by ranks, which six pairs have."""
        ratios = sorted(base / seconds for base, seconds in zip(self.base, self.seconds, strict=True))
        ends = median_ends(ratios)
        return statistics.median(ratios), *((None, None) if ends is None else ends)

    @property
    def is_known(self) -> bool:
        """Whether more pairs would not change what is said: the interval is narrow, or clearly on one side of 1."""
        value, low, high = self.interval()
        if low is None or high is None:
            return False
        return high - low <= NARROW * value or high < 1 / CLEAR or low > CLEAR


def take_pairs(
    base: Timed, others: Mapping[Key, Timed], *, repeats: int, wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Key, Ratio]:  # fmt: skip
    """Time each of the others beside `base`, in turn, until their ratio is known (`Ratio.is_known`).

    Each is also done when its seconds are over or after `repeats` pairs, from `LEAST` pairs on: a call that is many
    times slower is not timed for minutes.
    """

    seconds_of = partial(_seconds_of, wait=wait, clock=clock)

    def is_done(ratio: Ratio, budget: float) -> bool:
        count = len(ratio.seconds)
        return count >= LEAST and (count >= repeats or sum(ratio.seconds) >= budget or ratio.is_known)

    ratios: dict[Key, Ratio] = {key: Ratio() for key in others}
    with no_collection():
        for call in (base, *others.values()):
            if len(call.ran) < 2 and sum(call.ran) * 2 * LEAST <= call.seconds:  # two to warm up, where they are quick
                seconds_of(call)
        left = list(others)
        while left:
            mine = seconds_of(base)
            for key in left:
                ratios[key].seconds.append(seconds_of(others[key]))
                ratios[key].base.append(mine)
            left = [key for key in left if not is_done(ratios[key], others[key].seconds)]
    return ratios


def _is_done(samples: Sequence[float], spent: float, budget: float, repeats: int) -> bool:
    """`LEAST` samples in any case, then up to `repeats` within the budget; fewer where more would tell nothing new."""
    count = len(samples)
    if count < LEAST or (spent < budget and count < repeats):
        reached = [needed for needed in NEEDED.values() if count < needed <= min(repeats, budget * count / spent)]
        return count >= LEAST and not reached and _is_narrow(samples)
    return True


def _is_narrow(samples: Sequence[float]) -> bool:
    ends = median_ends(samples)
    return ends is not None and ends[1] - ends[0] <= NARROW * statistics.median(samples)


def median_ends(samples: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median, between two of the samples by their ranks; None for five samples and fewer."""
    count = len(samples)
    tail, below = 0.0, -1
    while tail + math.comb(count, below + 1) / 2**count <= 0.025:  # of a binomial distribution
        below += 1
        tail += math.comb(count, below) / 2**count
    if below < 0:
        return None
    ordered = sorted(samples)
    return ordered[below], ordered[count - 1 - below]


def _warmed_up(call: Timed, seconds_of: Callable[[Timed], float]) -> Times:
    samples = list(call.ran)
    while len(samples) < MOST_WARMUPS and not is_flat(samples):
        # passes this slow cannot be seen to become stable: more would take as long as the measurement itself
        too_slow = min(samples, default=0.0) * 2 * WINDOW > call.seconds
        if too_slow or (len(samples) >= 2 * WINDOW and sum(samples) >= WARMUP_SHARE * call.seconds):
            break
        samples.append(seconds_of(call))
    return Times(warmup=len(samples), warm=is_flat(samples))


def is_flat(samples: Sequence[float]) -> bool:
    """Whether the median of the last samples agrees with that of the samples before."""
    if len(samples) < 2 * WINDOW:
        return False
    earlier, later = statistics.median(samples[-2 * WINDOW : -WINDOW]), statistics.median(samples[-WINDOW:])
    return abs(later - earlier) <= FLAT * earlier


@contextmanager
def fixed_threads(threads: int | None) -> Iterator[int]:
    """Set the number of torch's threads meanwhile (None: unchanged); yields the number."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def waiting_for(device: torch.device) -> Callable[[], None]:
    """A function that waits until the device has finished all its work."""
    if device.type == "cpu":
        return lambda: None
    return lambda: torch.accelerator.synchronize(device)
