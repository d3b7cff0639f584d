"""Intervals of shares and medians, against SciPy and published values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from learnscope.reading.proportions import Share, median_interval


@pytest.mark.parametrize("n", [1, 2, 5, 20, 50, 333, 10_000])
def test_the_interval_of_a_share_is_wilsons(n: int) -> None:
    for right in {0, 1, n // 3, n // 2, n - 1, n}:
        expected = stats.binomtest(right, n).proportion_ci(method="wilson")
        assert Share(right / n, n).interval == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [  # Newcombe (1998), Statistics in Medicine 17, 873: his method 10
        ((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090), ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926), ((0, 10), (0, 20), -0.1611, 0.2775), ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)  # fmt: skip
def test_the_interval_of_a_difference_is_newcombes(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    found = Share(first[0] / first[1], first[1]) - Share(second[0] / second[1], second[1])
    assert found == pytest.approx((low, high), abs=6e-5)


def test_a_share_reads_with_its_interval() -> None:
    assert str(Share(0.5, 50)) == "50 % (95 % interval 36.6 % to 63.4 %, n = 50)"


@pytest.mark.parametrize("n", [0, 1, 5, 6, 7, 8, 9, 25, 200, 1000])
def test_the_interval_of_a_median_is_that_of_the_sign_test(n: int) -> None:
    places = [k for k in range(1, n + 1) if stats.binom.cdf(k - 1, n, 0.5) <= 0.025]
    expected = (float(max(places)), float(n + 1 - max(places))) if places else None
    shuffled = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    assert median_interval(shuffled) == expected


def test_of_very_many_the_normal_quantile_is_within_a_place() -> None:
    found = median_interval(np.arange(1.0, 5001.0))
    assert found is not None
    assert abs(found[0] - stats.binom.ppf(0.025, 5000, 0.5)) <= 1
    assert found[0] + found[1] == 5001


def test_the_median_is_covered_as_often_as_promised_however_skewed() -> None:
    random = np.random.default_rng(1)
    hits = sum(
        low <= np.log(2) <= high
        for low, high in (median_interval(random.exponential(size=15)) or (0, 0) for _ in range(2000))
    )
    # k = 4 of 15: the exact coverage is 1 − 2·P(B(15, ½) ≤ 3) = 96.5 %
    assert hits / 2000 == pytest.approx(1 - 2 * stats.binom.cdf(3, 15, 0.5), abs=0.015)
