"""A series at less detail than it was recorded: buckets of neighbouring measurements that hide no spike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from learnscope.reading.gather import Series

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FANOUT = 4
"""Buckets of a level that make one of the next."""


@dataclass(frozen=True)
class Level:
    """Buckets of neighbouring measurements. Numbers are over the finite values of a bucket, NaN if it has none."""

    first: Ints
    """The step of each bucket's first measurement."""
    last: Ints
    low: Floats
    high: Floats
    mean: Floats
    end: Floats
    """The last finite value."""
    finite: Ints
    """How many values are finite."""
    measured: Ints
    """How many values there are, those included that are missing or not finite."""

    def __len__(self) -> int:
        return len(self.first)


class Pyramid:
    """A series, and levels of it that each have a quarter of the buckets of the one before.

    >>> series = Series(np.arange(1, 1001), np.where(np.arange(1, 1001) == 500, 9.0, 1.0), [None] * 1000)
    >>> shown = Pyramid(series).at_most(20)
    >>> len(shown), float(shown.high.max()), float(shown.low.min()), int(shown.measured.sum())
    (16, 9.0, 1.0, 1000)
    """

    def __init__(self, series: Series) -> None:
        self.series = series
        self._levels = [_exact(series)]

    def at_most(self, buckets: int, first: int | None = None, last: int | None = None) -> Level:
        """The finest level with at most so many buckets between two steps; if few were measured, each for itself."""
        for number in range(64):
            level = _between(self._level(number), first, last)
            if len(level) <= max(buckets, 1):
                break
        return level

    def _level(self, number: int) -> Level:
        while len(self._levels) <= number:
            self._levels.append(_joined(self._levels[-1]))
        return self._levels[number]

    @cached_property
    def whole(self) -> Level:
        """Everything as one bucket; none if nothing was measured."""
        return self.at_most(1)


def thinned(steps: Ints, values: Floats, buckets: int = 1500) -> tuple[Ints, Floats]:
    """The measurements that a line through all of them would show: of each bucket the first, lowest, highest and last.

    A bucket with a gap in it keeps a gap. Few measurements stay as they are.
    """
    size = -(-len(steps) // buckets)
    if size <= 5:
        return steps, values
    starts = np.arange(0, len(steps), size)
    padded = np.full(len(starts) * size, np.nan)
    padded[: len(values)] = values
    cells = padded.reshape(-1, size)
    gaps = ~np.isfinite(cells)
    lowest = np.where(gaps, np.inf, cells).argmin(axis=1)
    highest = np.where(gaps, -np.inf, cells).argmax(axis=1)
    inner = starts[:, None] + np.stack([lowest, highest, gaps.argmax(axis=1)], axis=1)
    ends = np.append(starts[1:], len(steps)) - 1
    kept = np.unique(np.concatenate([starts, ends, inner[:, :2].ravel(), inner[gaps.any(axis=1), 2]]))
    kept = kept[kept < len(steps)]
    return steps[kept], values[kept]


def _exact(series: Series) -> Level:
    finite = np.isfinite(series.values)
    value = np.where(finite, series.values, np.nan)
    count = finite.astype(np.int64)
    return Level(series.steps, series.steps, value, value, value, value, count, np.ones(len(value), np.int64))


def _joined(level: Level) -> Level:
    """Neighbouring buckets as one."""
    starts = np.arange(0, len(level), FANOUT)
    if not len(starts):
        return level
    ends = np.append(starts[1:], len(level)) - 1
    finite = np.add.reduceat(level.finite, starts)
    sums = np.add.reduceat(np.where(level.finite > 0, level.mean * level.finite, 0.0), starts)
    mean = np.full(len(starts), np.nan)
    np.divide(sums, finite, out=mean, where=finite > 0)
    latest = np.maximum.reduceat(np.where(level.finite > 0, np.arange(len(level)), -1), starts)
    return Level(
        first=level.first[starts],
        last=level.last[ends],
        low=np.fmin.reduceat(level.low, starts),
        high=np.fmax.reduceat(level.high, starts),
        mean=mean,
        end=np.where(latest >= 0, level.end[latest], np.nan),
        finite=finite,
        measured=np.add.reduceat(level.measured, starts),
    )


def _between(level: Level, first: int | None, last: int | None) -> Level:
    """The buckets that have a measurement between two steps, both included."""
    shown = np.ones(len(level), bool)
    if first is not None:
        shown &= level.last >= first
    if last is not None:
        shown &= level.first <= last
    return Level(*(getattr(level, name)[shown] for name in Level.__dataclass_fields__))
