"""Shares of examples, with 95 % intervals that also hold for few of them and near 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from learnscope.findings.gather import Floats
from learnscope.findings.words import percent

Z = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class Share:
    """A share of `n` examples: an accuracy, say."""

    value: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval.

        >>> low, high = Share(0.5, 50).interval
        >>> round(low, 4), round(high, 4)
        (0.3664, 0.6336)
        """
        spread = Z * sqrt(self.value * (1 - self.value) / self.n + Z**2 / (4 * self.n**2))
        centre, scale = self.value + Z**2 / (2 * self.n), 1 + Z**2 / self.n
        return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)

    def __sub__(self, other: Share) -> tuple[float, float]:
        """Newcombe's interval of the difference of two shares of different examples, from their score intervals.

        >>> low, high = Share(56 / 70, 70) - Share(48 / 80, 80)
        >>> round(low, 4), round(high, 4)
        (0.0524, 0.3339)
        """
        difference = self.value - other.value
        (own_low, own_high), (low, high) = self.interval, other.interval
        return (
            difference - sqrt((self.value - own_low) ** 2 + (high - other.value) ** 2),
            difference + sqrt((own_high - self.value) ** 2 + (other.value - low) ** 2),
        )

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
