"""Intervals of shares and of differences within strata, against SciPy and by drawing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from learnscope.intervals import difference, wilson, within_difference

Side = tuple[int, int]


def by_scipy(right: int, n: int) -> tuple[float, float]:
    found = stats.binomtest(right, n).proportion_ci(method="wilson")
    return found.low, found.high


@pytest.mark.parametrize("n", [1, 3, 40, 100_000])
def test_wilsons_interval(n: int) -> None:
    for right in {0, 1, n // 2, n}:
        assert wilson(right / n, n) == pytest.approx(by_scipy(right, n), abs=1e-9)


def naive(strata: list[tuple[Side, Side]]) -> tuple[float, float, float]:
    weights = np.array([n * m / (n + m) for (_, n), (_, m) in strata], dtype=np.float64)
    weights /= weights.sum()
    value = below = above = 0.0
    for w, ((a, n), (b, m)) in zip(weights, strata, strict=True):
        value += w * (a / n - b / m)
        below += w**2 * ((a / n - by_scipy(a, n)[0]) ** 2 + (by_scipy(b, m)[1] - b / m) ** 2)
        above += w**2 * ((by_scipy(a, n)[1] - a / n) ** 2 + (b / m - by_scipy(b, m)[0]) ** 2)
    return value, value - np.sqrt(below), value + np.sqrt(above)


def test_within_strata() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        strata = []
        for _ in range(random.integers(1, 6)):
            n, m = (int(v) for v in random.integers(1, 60, 2))
            strata.append(((int(random.integers(0, n + 1)), n), (int(random.integers(0, m + 1)), m)))
        value, (low, high) = within_difference([((a / n, n), (b / m, m)) for (a, n), (b, m) in strata])
        assert (value, low, high) == pytest.approx(naive(strata), abs=1e-9)
        assert low < value < high or value in (-1, 1)


def test_a_single_stratum_is_a_plain_difference() -> None:
    value, interval = within_difference([((0.9, 10), (0.3, 10))])
    assert interval == difference((0.9, 10), (0.3, 10)) == pytest.approx((0.1705, 0.8090), abs=6e-5)  # Newcombe 1998
    assert value == pytest.approx(0.6)


def test_a_difference_that_comes_from_the_strata_alone_is_none_within_them() -> None:
    """Simpson's: one side is nearly all easy, the other nearly all hard, and in neither is there a difference."""
    strata = [((0.95, 180), (0.95, 20)), ((0.4, 20), (0.4, 180))]
    plain = difference((0.95 * 0.9 + 0.4 * 0.1, 200), (0.95 * 0.1 + 0.4 * 0.9, 200))
    value, (low, high) = within_difference(strata)
    assert plain[0] > 0.3
    assert value == pytest.approx(0, abs=1e-12)
    assert low < 0 < high


def test_strata_with_one_side_only_do_not_count() -> None:
    both = ((0.9, 30), (0.5, 40))
    assert within_difference([both, ((1.0, 50), (0.0, 0)), ((0.0, 0), (0.2, 9))]) == within_difference([both])
    with pytest.raises(ValueError, match="no stratum"):
        within_difference([((1.0, 50), (0.0, 0))])
    with pytest.raises(ValueError, match="no stratum"):
        within_difference([])


def test_it_covers_what_is_true_as_often_as_promised() -> None:
    random = np.random.default_rng(1)
    sizes = [(6, 45), (5, 40), (8, 50), (4, 30)]
    p, q = np.array([0.97, 0.9, 0.95, 0.9]), np.array([0.6, 0.5, 0.7, 0.4])
    weights = np.array([n * m / (n + m) for n, m in sizes])
    true = float((weights * (p - q)).sum() / weights.sum())
    hits = 0
    for _ in range(2000):
        strata = [((random.binomial(n, a) / n, n), (random.binomial(m, b) / m, m)) for (n, m), a, b in
                  zip(sizes, p, q, strict=True)]  # fmt: skip
        low, high = within_difference(strata)[1]
        hits += low <= true <= high
    assert hits / 2000 >= 0.94  # conservative where a side has few examples
