"""Where a series changes its level, and whether it does at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from learnscope.reading.gather import Floats

PERMUTATIONS = 999
ALPHA = 0.01
MIN_SIZE = 3
"""Values that a level has at least."""
PENALTY = 3.0
"""Of one more change, in units of σ² ln n."""
PELT_UP_TO = 2_000
"""Values up to which segmentation is exact; binary segmentation beyond, since PELT may take n² steps."""
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Changes:
    """The places at which a level ends, with the evidence that there is one at all."""

    places: list[int]
    """Positions of the first value of each new level; empty if there is no transition."""
    p_value: float
    """Of the best single split under random orders of the values."""
    n: int
    permutations: int
    penalty: float
    method: str
    """`PELT` or `binary segmentation`."""


def change_points(
    values: ArrayLike, *, alpha: float = ALPHA, permutations: int = PERMUTATIONS, min_size: int = MIN_SIZE,
    penalty: float = PENALTY, seed: int = 0,
) -> Changes:  # fmt: skip
    """Changes of the mean of a finite series.

    First the question whether there is any: the largest reduction of the sum of squares that a single split gives is
    compared with that of `permutations` random orders of the same values, drawn with `seed`; the p-value is
    (1 + those as large)/(1 + permutations). With p > `alpha` the answer is none. Then where: the segmentation of least
    Σ(x − mean of its segment)² + penalty·σ² ln n per change, exactly (PELT) up to 2,000 values. σ is from the median
    absolute first difference, which a few jumps do not move, and at least 1 % of the standard deviation of the series.

    Random orders are what the series would look like if values did not depend on their neighbours: a slow trend, or
    noise that wanders, is no such series and will be called a change. A p-value for every one of many series needs a
    smaller `alpha`. Fewer than 2·min_size values, or equal ones: p = 1 and none.
    """
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"a series has one dimension, not {series.ndim}")
    if not np.isfinite(series).all():
        raise ValueError("the series has values that are not finite: leave them out, and know which they were")
    if permutations < 1 or not 0 < alpha < 1 or min_size < 1:
        raise ValueError("permutations and min_size are from 1, alpha between 0 and 1")
    n = len(series)
    method = "PELT" if n <= PELT_UP_TO else "binary segmentation"
    if n < 2 * min_size or np.ptp(series) <= 1e-12 * float(np.abs(series).max()):
        return Changes([], 1.0, n, permutations, 0.0, method)
    series = series - series.mean()
    size = float(np.abs(series).max())
    spread = size * float((series / size).std())  # squares neither vanish nor overflow
    series = series / spread
    p_value = _permutation_p(series, permutations, min_size, seed)
    noise = max(float(np.median(np.abs(np.diff(series)))) / (0.6744897501960817 * math.sqrt(2)), 0.01)
    cost = penalty * noise**2 * math.log(n)
    places = _segment(series, cost, min_size, method) if p_value <= alpha else []
    return Changes(places, p_value, n, permutations, cost * spread**2, method)


def first_lasting(holds: Sequence[bool] | np.ndarray[tuple[int], np.dtype[np.bool_]], length: int) -> int | None:
    """The first place from which a condition holds for `length` values in a row; None if it never does.

    >>> first_lasting([False, True, False, True, True, True], 3)
    3
    """
    run = 0
    for place, holds_here in enumerate(holds):
        run = run + 1 if holds_here else 0
        if run == length:
            return place - length + 1
    return None


def _permutation_p(series: Floats, permutations: int, min_size: int, seed: int) -> float:
    generator = np.random.default_rng(seed)
    observed = float(_best_split(series[None], min_size)[0])
    as_large = 0
    width = max(1, _AT_ONCE // len(series))
    for start in range(0, permutations, width):
        rows = np.tile(series, (min(width, permutations - start), 1))
        shuffled = _best_split(generator.permuted(rows, axis=1), min_size)
        # sums in another order differ in their last digits: what is equal must count as equal
        as_large += int((shuffled >= observed * (1 - 1e-9)).sum())
    return (1 + as_large) / (1 + permutations)


def _best_split(rows: Floats, min_size: int) -> Floats:
    """By row, the largest reduction of the sum of squares by one split: max_k S_k²·n/(k(n − k)), S_k = Σ_{i≤k} x."""
    n = rows.shape[1]
    k = np.arange(min_size, n - min_size + 1)
    sums = np.cumsum(rows - rows.mean(1, keepdims=True), axis=1)[:, k - 1]
    best: Floats = (sums**2 * (n / (k * (n - k)))).max(1)
    return best


def _segment(series: Floats, cost: float, min_size: int, method: str) -> list[int]:
    if method == "PELT":
        return _least_cost(series, cost, min_size)
    import ruptures  # takes a second to import, and few runs are so long

    ends = ruptures.Binseg(model="l2", min_size=min_size, jump=1).fit(series.reshape(-1, 1)).predict(pen=cost)
    return [int(end) for end in ends[:-1]]


def _least_cost(series: Floats, cost: float, min_size: int) -> list[int]:
    """The optimum that PELT finds, by the recursion that it prunes:
    least(t) = min over s of least(s) + squares(s, t) + cost."""
    n = len(series)
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (series, series**2))
    least, before = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=np.intp)
    least[0] = -cost
    for end in range(min_size, n + 1):
        starts = slice(0, end - min_size + 1)
        length = end - np.arange(starts.stop)
        within = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / length
        total = least[starts] + within + cost
        before[end] = np.argmin(total)
        least[end] = total[before[end]]
    places: list[int] = []
    while (n := int(before[n])) > 0:
        places.append(n)
    return places[::-1]
