"""Timing several things side by side: warm-up, taking turns, percentiles that the number of samples bears."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

WINDOW = 3
"""Samples of a rolling median; two windows that agree within `FLAT` are flat."""
FLAT = 0.05
MOST_WARMUPS = 50
WARMUP_SHARE = 0.25
"""Of its budget that a thing may spend on warming up; one pass where the whole would not even fill two windows."""
LEAST = 3
"""Samples taken whatever the budget."""
NEEDED = {0.95: 59, 0.99: 299}
"""Samples of which the largest is above a percentile in 95 of 100 cases: pⁿ ≤ 0.05."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Timed:
    """Something to be timed: `run` is, `after`, which puts things back, is not. `seconds` is its budget."""

    run: Callable[[], object]
    seconds: float
    after: Callable[[], object] | None = None


@dataclass(slots=True)
class Times:
    """Seconds of each pass, how many were thrown away before, and whether they had settled by then."""

    seconds: list[float] = field(default_factory=list)
    warmup: int = 0
    warm: bool = False

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seconds)

    def percentile(self, share: float) -> float | None:
        """By nearest rank: the ⌈share·n⌉-th smallest; None where there are too few samples for it."""
        if len(self.seconds) < NEEDED.get(share, 1):
            return None
        return sorted(self.seconds)[math.ceil(round(share * len(self.seconds), 9)) - 1]


def take_turns(
    things: Mapping[Key, Timed],
    *,
    repeats: int,
    wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Key, Times]:
    """Warm each up, then time all of them in turn, so that what the machine does meanwhile touches all alike.

    Each is run until it has spent its budget or been run `repeats` times, at least `LEAST` times. `wait` waits for the
    device. The garbage collector is off meanwhile.
    """
    found: dict[Key, Times] = {}
    with _no_garbage_collection():
        for key, thing in things.items():
            found[key] = _warmed_up(thing, wait, clock)
        spent = dict.fromkeys(things, 0.0)
        left = list(things)
        while left:
            for key in left:
                seconds = _one(things[key], wait, clock)
                found[key].seconds.append(seconds)
                spent[key] += seconds
            left = [key for key in left if _goes_on(len(found[key].seconds), spent[key], things[key].seconds, repeats)]
    return found


def _goes_on(taken: int, spent: float, budget: float, repeats: int) -> bool:
    return taken < LEAST or (taken < repeats and spent < budget)


def _warmed_up(thing: Timed, wait: Callable[[], None], clock: Callable[[], float]) -> Times:
    seen: list[float] = []
    while len(seen) < MOST_WARMUPS and not is_flat(seen):
        seen.append(_one(thing, wait, clock))
        # a pass so slow cannot be seen to settle, and more of them would take as long as the measurement itself
        hopeless = min(seen) * 2 * WINDOW > thing.seconds
        if hopeless or (len(seen) >= 2 * WINDOW and sum(seen) >= WARMUP_SHARE * thing.seconds):
            break
    return Times(warmup=len(seen), warm=is_flat(seen))


def is_flat(seen: Sequence[float]) -> bool:
    """Whether the medians of the last samples and of those before them agree."""
    if len(seen) < 2 * WINDOW:
        return False
    earlier, later = statistics.median(seen[-2 * WINDOW : -WINDOW]), statistics.median(seen[-WINDOW:])
    return abs(later - earlier) <= FLAT * earlier


def _one(thing: Timed, wait: Callable[[], None], clock: Callable[[], float]) -> float:
    wait()
    began = clock()
    thing.run()
    wait()
    seconds = clock() - began
    if thing.after is not None:
        thing.after()
    return seconds


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def fixed_threads(threads: int | None) -> Iterator[int]:
    """So many threads for torch's own arithmetic meanwhile (None: as many as it has); how many that are."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def waiting_for(device: torch.device) -> Callable[[], None]:
    """A function that waits until the device has done all that it was given."""
    if device.type == "cpu":
        return lambda: None
    return lambda: torch.accelerator.synchronize(device)
