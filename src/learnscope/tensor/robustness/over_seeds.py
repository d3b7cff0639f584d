"""A mean over repetitions that differ only in their random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval by Student's t, mean ± t(n−1)·s/√n with the unbiased s.

    Bounds are NaN for fewer than two values, or where one is not finite.

    >>> [round(x, 4) for x in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.4841, 4.4841]
    """
    from scipy.special import stdtrit

    n = len(values)
    if not n:
        return math.nan, math.nan, math.nan
    if not all(math.isfinite(value) for value in values):
        return sum(values) / n, math.nan, math.nan
    mean = math.fsum(values) / n
    if n < 2:
        return mean, math.nan, math.nan
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.975)) * spread / math.sqrt(n)
    return mean, mean - half, mean + half
