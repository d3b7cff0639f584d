"""Shares of examples, with 95 % intervals that also hold for few of them and near 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from learnscope.intervals import Z, difference, wilson
from learnscope.reading.gather import Floats
from learnscope.reading.words import percent


@dataclass(frozen=True)
class Share:
    """A share of `n` examples: an accuracy, say."""

    value: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval."""
        return wilson(self.value, self.n)

    def __sub__(self, other: Share) -> tuple[float, float]:
        """Newcombe's interval of the difference of two shares of different examples."""
        return difference((self.value, self.n), (other.value, other.n))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{percent(self.value)} (95 % interval {percent(low)} to {percent(high)}, n = {self.n:,})"


def median_interval(values: Floats) -> tuple[float, float] | None:
    """An interval that holds the median with at least 95 %, whatever the distribution; None for fewer than 6 values.

    Its ends are values themselves: the k-th from below and above, with the largest k for which a fair coin shows
    fewer than k heads in n throws with a probability of at most 2.5 %.

    >>> median_interval(np.array([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]))
    (1.0, 6.0)
    """
    ordered = np.sort(values)
    n, k = len(ordered), 0
    if n > 1000:  # the powers of 2 would underflow; the normal quantile is the same here to within a place
        k = int((n - Z * sqrt(n)) / 2)
    else:
        probability, below = 0.5**n, 0.0  # of exactly k heads, and of fewer than that
        while below + probability <= 0.025:
            below += probability
            probability *= (n - k) / (k + 1)
            k += 1
    return (float(ordered[k - 1]), float(ordered[n - k])) if k else None
