"""The course of a loss: its levels, its noise, and whether it fell, rose or stayed.

The unit of every judgement is the noise of the loss itself, so that neither its scale nor its zero matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from learnscope.quantities import Quantity
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import Floats, one_pass, series
from learnscope.store.reader import RunReader

Ints = NDArray[np.int64]
FEWEST = 20
"""Values below which nothing is said about a course."""
BLOCKS = 40
"""Levels that a long course is made of; a short one has fewer, of at least `BLOCK` values."""
BLOCK = 5
SURE = 4.0
"""Standard errors from which a difference of two levels is one: 1 in 30,000 by chance, and at most 40 are looked at."""
MAD = 1.4826
"""From a median absolute deviation to a standard deviation, of normal noise."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median in units of that of a mean, of normal noise."""


@dataclass(frozen=True)
class Level:
    """The median of neighbouring values, with its standard error."""

    value: float
    error: float
    first: int
    last: int
    n: int

    def above(self, other: Level) -> float:
        """By how many standard errors it lies above another."""
        error = math.hypot(self.error, other.error)
        difference = self.value - other.value
        return difference / error if error else math.copysign(math.inf, difference) if difference else 0.0


@dataclass(frozen=True)
class Course:
    """A loss over the steps at which it was finite."""

    steps: Ints
    values: Floats
    broken: int
    """How many values were not finite."""
    probe: str = Loss.probe
    name: str = Loss.loss.name

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def noise(self) -> float:
        """Standard deviation of a value around its local level: the median of that of all blocks."""
        return float(np.median(self._block_noise))

    @cached_property
    def edges(self) -> Ints:
        """Where blocks begin, and the end."""
        number = max(2, min(BLOCKS, len(self) // BLOCK))
        return np.linspace(0, len(self), number + 1).astype(np.int64)

    @cached_property
    def _block_noise(self) -> Floats:
        ends = zip(self.edges[:-1], self.edges[1:], strict=True)
        return np.array([noise_of(self.values[first:last]) for first, last in ends])

    @cached_property
    def levels(self) -> list[Level]:
        """Of the blocks, in order."""
        noise = self._block_noise
        # a block's own noise rests on few values: at least half of the usual one
        near = [float(np.median(noise[max(0, i - 2) : i + 3])) for i in range(len(noise))]
        ends = zip(self.edges[:-1], self.edges[1:], strict=True)
        return [
            self._level(first, last, max(own, self.noise / 2)) for (first, last), own in zip(ends, near, strict=True)
        ]

    def _level(self, first: int, last: int, noise: float) -> Level:
        n = int(last - first)
        error = max(MEDIAN_ERROR * noise / math.sqrt(n), self._drift)
        value = float(np.median(self.values[first:last]))
        return Level(value, error, int(self.steps[first]), int(self.steps[last - 1]), n)

    @cached_property
    def _drift(self) -> float:
        """How much levels wander beyond the noise of single values, where there are enough of them to tell."""
        if len(self.edges) < 16:
            return 0.0
        medians = [np.median(self.values[a:b]) for a, b in zip(self.edges[:-1], self.edges[1:], strict=True)]
        bends = np.diff(np.array(medians[len(medians) // 4 :]), 2)
        return MAD * float(np.median(np.abs(bends))) / math.sqrt(6)

    @cached_property
    def start(self) -> Level:
        """The first few values: before anything was learned, if the run was watched from the start."""
        n = min(BLOCK, len(self))
        return self._level(0, n, max(self.noise, noise_of(self.values[n : 4 * n])))

    @cached_property
    def end(self) -> Level:
        """The last fifth."""
        n = max(BLOCK, len(self) // 5)
        return self._level(len(self) - n, len(self), max(self.noise / 2, noise_of(self.values[-n:])))

    @cached_property
    def best(self) -> Level:
        """The lowest level."""
        return min([self.start, *self.levels, self.end], key=lambda level: level.value)

    @cached_property
    def peak(self) -> Level:
        """The highest level."""
        return max([self.start, *self.levels, self.end], key=lambda level: level.value)

    def peak_before(self, step: int) -> float:
        """The highest level of the first tenth of the run, as far as it lies before a step."""
        n = max(len(self.levels) // 10, 1)
        return max((level.value for level in self.levels[:n] if level.last < step), default=self.start.value)

    @property
    def gain(self) -> float:
        """From the start to the best level."""
        return self.start.value - self.best.value

    @property
    def improved(self) -> bool:
        """Whether any level lies surely below the start."""
        return self.start.above(self.best) > SURE

    @property
    def gained_share(self) -> float:
        """What was gained, in units of the size of the loss at the start; for judging runs without noise."""
        size = abs(self.start.value)
        return self.gain / size if size else math.inf if self.gain else 0.0

    def flat(self, little: float) -> bool:
        """Whether nothing was gained beyond the noise, or less than a share `little` of the loss."""
        return not self.improved or self.gained_share < little

    def until(self, step: int) -> Course:
        """What was known at a step."""
        n = int(np.searchsorted(self.steps, step, "right"))
        return Course(self.steps[:n], self.values[:n], self.broken, self.probe, self.name)


def noise_of(values: ArrayLike) -> float:
    """Standard deviation around a local level, by the median absolute deviation of the differences of neighbours.

    Differences take the trend away, and their median what is left of it. 0 for fewer than 3 values.

    >>> noise_of([3.0, 2.0, 1.0, 0.0])
    0.0
    """
    differences = np.diff(np.asarray(values, np.float64))
    if len(differences) < 2:
        return 0.0
    return MAD * float(np.median(np.abs(differences - np.median(differences)))) / math.sqrt(2)


def noise_between(steps: ArrayLike, values: ArrayLike) -> float:
    """Standard deviation around a course that goes straight from one measurement to the next but one.

    For measurements at unequal distances, where `noise_of` would take a steady rise for noise. Each value is compared
    with the line through its two neighbours; the variance of that difference is (1 + w² + (1 − w)²) times that of a
    value, w being the first neighbour's weight. By the median absolute deviation; 0 for fewer than 3 values.

    >>> noise_between([1, 10, 20, 120, 320], [1.01, 1.1, 1.2, 2.2, 4.2]) < 1e-12
    True
    """
    at, found = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    if len(found) < 3:
        return 0.0
    weight = (at[2:] - at[1:-1]) / (at[2:] - at[:-2])
    off = found[1:-1] - weight * found[:-2] - (1 - weight) * found[2:]
    return MAD * float(np.median(np.abs(off) / np.sqrt(1 + weight**2 + (1 - weight) ** 2)))


def rising(values: ArrayLike) -> float:
    """By how many standard deviations more pairs of values rise than fall in time, if their order were chance.

    Mann and Kendall's trend statistic, S/√(n(n − 1)(2n + 5)/18); 0 for fewer than 2 values.

    >>> round(rising([1.0, 2.0, 3.0, 4.0]), 3)
    2.038
    """
    found = np.asarray(values, np.float64)
    n = len(found)
    if n < 2:
        return 0.0
    pairs = np.sign(found[None, :] - found[:, None])[np.triu_indices(n, 1)]
    return float(pairs.sum()) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def trailing(values: Floats, width: int, statistic: Callable[..., pd.Series[float]]) -> Floats:
    """A statistic of the `width` values before each; NaN where fewer than `BLOCK` came before."""
    rolling = pd.Series(values).rolling(width, min_periods=BLOCK)
    before: Floats = statistic(rolling).shift(1).to_numpy(np.float64)
    return before


def course_of(
    steps: ArrayLike, values: ArrayLike, probe: str = Loss.probe, name: str = Loss.loss.name
) -> Course | None:
    """The course of a loss; None if too few values are finite."""
    at, losses = np.asarray(steps, np.int64), np.asarray(values, np.float64)
    finite = np.isfinite(losses)
    if int(finite.sum()) < FEWEST:
        return None
    return Course(at[finite], losses[finite], int((~finite).sum()), probe, name)


def loss_course(reader: RunReader, quantity: Quantity = Loss.loss) -> Course | None:
    """The course of the training loss of a run, made once; None if too few losses were recorded."""
    run = one_pass(reader)

    def read() -> Course | None:
        found = series(run, quantity)
        return course_of(found.steps, found.values, found.probe, quantity.name)

    return run.remember(("course", quantity.probe, quantity.name), read)
