"""Jumps against a smooth trend: none on curves that bend, found where planted."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from learnscope.reading.jumps import fewest_values, jumps, why_none

Floats = NDArray[np.float64]
SIMULATIONS = 99


def smooth(n: int) -> dict[str, Floats]:
    """Courses of learning without any jump, from 0 to 1 or back."""
    t = np.arange(n, dtype=np.float64)
    u = t / (n - 1)
    return {
        "flat": 0 * u, "line": u, "slow exponential": np.exp(-2 * u), "exponential": np.exp(-6 * u),
        "fast exponential": np.exp(-20 * u), "rising": 1 - np.exp(-5 * u), "power": (1 + t) ** -0.5,
        "inverse": (1 + t) ** -1.0, "logistic": 1 / (1 + np.exp(-10 * (u - 0.5))),
        "cosine": 0.5 * (1 + np.cos(np.pi * u)), "square": u**2,
        "logarithm": np.log1p(t) / np.log(n), "Gompertz": np.exp(-6 * np.exp(-7 * u)),
    }  # fmt: skip


def jumping(n: int, k: int) -> dict[str, Floats]:
    t = np.arange(n, dtype=np.float64)
    u, step = t / (n - 1), (t >= k).astype(np.float64)
    return {
        "step": step, "cliff in an exponential": np.exp(-4 * u) - 0.4 * step, "step on a line": 0.5 * u + 0.5 * step,
        "grokking": 0.1 + 0.85 / (1 + np.exp(-2 * (t - k + 0.5))), "divergence": np.exp(-5 * u) + 0.6 * step,
    }  # fmt: skip


@pytest.mark.parametrize("n", [20, 40, 100])
def test_curves_that_bend_do_not_jump(n: int) -> None:
    """Three noise levels, none of them and all: at most one in a hundred, as `alpha` says, and none without noise."""
    alarms, looked = [], 0
    for sigma in (0.0, 0.005, 0.02, 0.1):
        for name, curve in smooth(n).items():
            for seed in range(4 if sigma else 1):
                noise = sigma * np.random.default_rng([seed, n, int(1e3 * sigma)]).normal(size=n)
                found = jumps(curve + noise, simulations=SIMULATIONS)
                looked += 1
                alarms += [(name, sigma, found.places)] if found.places else []
    assert looked == 13 * 13
    assert len(alarms) <= 2, alarms
    assert not [alarm for alarm in alarms if alarm[1] == 0]


def test_noise_that_shrinks_as_a_curve_settles_makes_no_jump() -> None:
    """As large as the curve itself at first: 5 % at most, of what would be 1 % if the noise were known."""
    n, alarms, looked = 400, [], 0
    for name, curve in smooth(n).items():
        for sigma in (0.03, 0.1):
            for seed in range(4):
                noise = np.random.default_rng([seed, int(1e3 * sigma), 2]).normal(size=n)
                found = jumps(curve + sigma * noise * (0.05 + np.abs(curve)), simulations=SIMULATIONS)
                looked += 1
                alarms += [(name, sigma, found.places)] if found.places else []
    assert looked == 13 * 8
    assert len(alarms) <= 5, alarms


@pytest.mark.parametrize(("n", "sigma"), [(40, 0.005), (40, 0.02), (100, 0.02), (100, 0.05)])
def test_real_jumps_are_found_where_they_are(n: int, sigma: float) -> None:
    found = missed = elsewhere = 0
    for name in jumping(n, 0):
        for seed in range(4):
            generator = np.random.default_rng([seed, n, int(1e3 * sigma), 1])
            k = int(generator.integers(n // 4, 3 * n // 4))
            told = jumps(jumping(n, k)[name] + sigma * generator.normal(size=n), simulations=SIMULATIONS).places
            hit = any(abs(place - k) <= 1 for place in told)
            found, missed, elsewhere = found + hit, missed + (not hit), elsewhere + (len(told) > hit)
    assert (missed, elsewhere) <= (1, 1), (found, missed, elsewhere)


def test_several_jumps_without_noise_and_with_it() -> None:
    clean = np.repeat([0.0, 1.0, 0.3], 20)
    assert jumps(clean).places == [20, 40]
    noisy = clean + np.linspace(0, 0.5, 60) + 0.02 * np.random.default_rng(0).normal(size=60)
    told = jumps(noisy)
    assert told.places == [20, 40]
    assert (told.p_value, told.n, told.simulations) == (0.001, 60, 999)


def test_uneven_steps_count_as_they_are() -> None:
    """A straight line that is looked at rarely at first and often later bends only in the order of its values."""
    steps = np.concatenate([np.arange(0, 1000, 100), np.arange(1000, 1020)])
    noise = 1e-3 * np.random.default_rng(1).normal(size=30)
    assert jumps(steps / 1000 + noise, steps).places == []
    with pytest.raises(ValueError, match="each above the one before"):
        jumps(np.zeros(9), np.zeros(9))


def test_units_do_not_count_and_answers_repeat() -> None:
    series = jumping(40, 17)["grokking"] + 0.03 * np.random.default_rng(2).normal(size=40)
    plain = jumps(series)
    assert plain.places == [17]
    assert jumps(1e-9 * series - 5).places == jumps(1e6 * series).places == [17]
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    assert jumps(series) == plain
    assert (np.random.get_state()[1] == state).all()  # type: ignore[union-attr]


def test_too_little_to_tell_and_nothing_to_tell() -> None:
    fewest = fewest_values()
    assert jumps(np.arange(fewest - 1) >= 4).places == []
    assert "from 8 on" in why_none(jumps([0.0, 1.0]), [0.0, 1.0], 0.01)
    assert jumps((np.arange(fewest) >= 4).astype(float)).places == [4]
    for flat in ([0.3] * 50, [], [1.0]):
        found = jumps(flat)
        assert (found.places, found.p_value) == ([], 1.0)
    assert why_none(jumps([0.3] * 50), [0.3] * 50, 0.01) == "all values are equal"
    with pytest.raises(ValueError, match="not finite"):
        jumps([1.0, float("nan")] * 5)
    with pytest.raises(ValueError, match="one dimension"):
        jumps(np.zeros((4, 4)))
