"""Changes of level: found where planted, and found in noise no more often than was asked for."""

from __future__ import annotations

import sys
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom

from learnscope.reading.changepoints import change_points, first_lasting


def levels(*parts: tuple[float, int], noise: float = 0.1, seed: int = 0) -> np.ndarray:
    means = np.concatenate([np.full(n, level) for level, n in parts])
    return means + noise * np.random.default_rng(seed).standard_normal(len(means))


@pytest.mark.parametrize("kind", ["normal", "heavy", "counts"])
def test_the_rate_in_flat_noise_is_the_one_asked_for(kind: str) -> None:
    """Exchangeable values: p ≤ α in a share α of the series, whatever their distribution."""
    generator = np.random.default_rng(7)
    draw = {
        "normal": lambda: generator.standard_normal(40),
        "heavy": lambda: generator.standard_t(2, 40),
        "counts": lambda: generator.binomial(500, 0.02, 40) / 500,
    }[kind]
    series, alpha = 600, 0.1
    found = [change_points(draw(), alpha=alpha, permutations=199, seed=i) for i in range(series)]
    rejected = sum(one.p_value <= alpha for one in found)
    low, high = binom.interval(0.999, series, alpha)
    # ties make the test of counts conservative, never liberal
    assert (low if kind != "counts" else 0.5 * low) <= rejected <= high
    assert sum(bool(one.places) for one in found) <= rejected


def test_planted_changes_are_found_where_they_are() -> None:
    for seed in range(10):
        found = change_points(levels((0.0, 40), (1.0, 30), (0.4, 50), seed=seed))
        assert found.places == [40, 70], seed
        assert found.p_value == 1 / 1000
        assert (found.method, found.n) == ("PELT", 120)


def test_exact_segmentation_against_every_segmentation() -> None:
    """The least penalised cost among all ways to cut twelve values with at most three changes."""
    series = levels((0.0, 4), (3.0, 4), (-1.0, 4), noise=0.3)
    found = change_points(series, min_size=2, alpha=0.99)
    costs = {}
    for changes in range(4):
        for cut in combinations(range(1, 12), changes):
            parts = np.split(series, cut)
            if min(map(len, parts)) >= 2:
                costs[cut] = sum(((p - p.mean()) ** 2).sum() for p in parts) + found.penalty * changes
    assert tuple(found.places) == min(costs, key=costs.__getitem__) == (4, 8)
    sigma = np.median(np.abs(np.diff(series))) / (0.67449 * np.sqrt(2))
    assert found.penalty == pytest.approx(3 * sigma**2 * np.log(12), rel=1e-4)


def test_a_jump_without_noise_and_a_series_without_any() -> None:
    assert change_points([0.0] * 20 + [1.0] * 20).places == [20]
    for flat in ([0.3] * 50, [], [1.0], [0.0, 5.0, 0.0, 5.0, 1.0], [1e9 + 1e-7 * (i % 2) for i in range(50)]):
        found = change_points(flat)
        assert found.places == []
        assert found.p_value == 1.0


def test_units_do_not_count_and_answers_repeat() -> None:
    series = levels((0.0, 30), (0.3, 30))
    plain = change_points(series)
    scaled = change_points(series * 1e-200)
    assert (scaled.places, scaled.p_value) == (plain.places, plain.p_value)
    assert change_points(series + 1e3).places == plain.places
    state = np.random.get_state()[1].copy()
    assert change_points(series) == plain
    assert (np.random.get_state()[1] == state).all()


def test_long_series_are_cut_in_two_again_and_again() -> None:
    found = change_points(levels((0.0, 1500), (1.0, 1000), (0.2, 500)), permutations=99, alpha=0.05)
    assert found.method == "binary segmentation"
    assert len(found.places) == 2
    assert np.abs(np.array(found.places) - [1500, 2500]).max() <= 2


def test_what_cannot_be_tested_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        change_points([1.0, float("nan")] * 5)
    with pytest.raises(ValueError, match="one dimension"):
        change_points(np.zeros((4, 4)))
    with pytest.raises(ValueError, match="alpha between 0 and 1"):
        change_points(np.zeros(9), alpha=0.0)


def test_first_lasting() -> None:
    assert first_lasting([True, True, False, True, True, True], 3) == 3
    assert first_lasting([True, True, True], 3) == 0
    assert first_lasting([True, True], 3) is None
    assert first_lasting([], 1) is None


def test_reading_a_run_does_not_import_the_segmentation() -> None:
    import subprocess

    program = "import sys, learnscope.findings; print('ruptures' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("seed", range(6))
def test_the_segmentation_is_that_of_ruptures(seed: int) -> None:
    """The same cost, and the same places where no other segmentation costs as much."""
    import ruptures

    from learnscope.reading.changepoints import _least_cost

    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.normal(0, 2, 1 + seed), 50)
    series = levels + rng.normal(0, 0.5, len(levels))
    for min_size, cost in ((2, 0.5), (5, 3.0), (10, 1e6)):
        search = ruptures.KernelCPD(kernel="linear", min_size=min_size)
        theirs = search.fit(series.reshape(-1, 1)).predict(pen=cost)[:-1]
        assert _least_cost(series, cost, min_size) == theirs
