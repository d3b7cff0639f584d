"""Numbers of each batch, and where they change for good or stand out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.quantities.outputs import Objective
from learnscope.reading.gather import Floats, Series, series
from learnscope.store.reader import RunReader

BEFORE, AFTER = 4, 3
"""Measurements before a change, and after it, that it takes to tell one."""
SEVERAL = 2
"""Batches that stand out, for it to be more than one bad batch."""
ALIKE = 2.0
"""Factor around their median within which numbers were much the same before a change."""


def of_each_batch(means: Floats, deviations: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each batch, from those of all up to it; batches are taken to be of one size.

    >>> [found.tolist() for found in of_each_batch(np.array([1.0, 2.0]), np.array([0.0, 1.0]))]
    [[1.0, 3.0], [0.0, 0.0]]
    """
    number = np.arange(1, len(means) + 1)
    own = np.diff(number * means, prepend=0.0)
    squares = np.diff(number * (deviations**2 + means**2), prepend=0.0)
    inside: Floats = np.sqrt(np.maximum(squares - own**2, 0.0))
    return own, inside


def target_sizes(reader: RunReader) -> Series | None:
    """How far the targets of each looked-at batch lie from the usual level: √((mean − level)² + variance).

    None where they were not measured, or lie so far from 0 that nothing is left of it by rounding.
    """
    level, spread = series(reader, Objective.target_mean).finite, series(reader, Objective.target_std).finite
    if len(level) < BEFORE + AFTER or len(level) != len(spread) or not spread.values[-1] > 1e-5 * abs(level.values[-1]):
        return None
    means, inside = of_each_batch(level.values, spread.values)
    sizes = np.hypot(means - np.median(means), inside)
    return Series(level.steps, sizes, [None] * len(sizes), level.probe)


@dataclass(frozen=True)
class Change:
    """Numbers that were much alike up to a measurement, and are all others from then on."""

    step: int
    """The first measurement at which they are others."""
    before: float
    after: float
    n: tuple[int, int]

    @property
    def factor(self) -> float:
        low, high = sorted((abs(self.before), abs(self.after)))
        return high / low if low else np.inf


def scale_change(found: Series, factor: float) -> Change | None:
    """The first measurement from which on every size is `factor` times above, or below, all that came before.

    What came before must be much alike: numbers that drift, or are drawn from a wide distribution, have no change.
    """
    values = np.abs(found.values)
    for place in range(BEFORE, len(values) - AFTER + 1):
        before, after = values[:place], values[place:]
        middle = float(np.median(before))
        if not middle > 0 or before.max() > ALIKE * middle or before.min() < middle / ALIKE:
            continue
        if after.min() > factor * before.max() or after.max() < before.min() / factor:
            return Change(int(found.steps[place]), middle, float(np.median(after)), (place, len(after)))
    return None


def level_change(found: Series, far: float) -> Change | None:
    """The first measurement from which on every level lies more than `far` from all that came before, on one side."""
    values = found.values
    for place in range(BEFORE, len(values) - AFTER + 1):
        before, after = values[:place], values[place:]
        apart = max(float(after.min() - before.max()), float(before.min() - after.max()))
        if apart > far and apart > np.ptp(before) and apart > np.ptp(after):
            return Change(int(found.steps[place]), float(np.median(before)), float(np.median(after)),
                          (place, len(after)))  # fmt: skip
    return None


def outlying(found: Series, factor: float, most: float = 0.5) -> Change | None:
    """Batches whose size is `factor` times the median one: more than a single one, and less than a share `most`."""
    values = np.abs(found.values)
    middle = float(np.median(values)) if len(values) else 0.0
    far = np.flatnonzero(values > factor * middle) if middle > 0 else np.zeros(0, np.int64)
    if len(far) < SEVERAL or len(far) > most * len(values):
        return None
    return Change(int(found.steps[far[0]]), middle, float(np.median(values[far])), (len(values) - len(far), len(far)))
