"""Streaming moments against NumPy and SciPy in float64 on all values at once."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from learnscope.tensor.features import distribution
from learnscope.tensor.features.distribution import Distribution, joined

RNG = np.random.default_rng(7)

AWKWARD = {
    "normal": RNG.normal(size=5000),
    "large mean": 1e8 + RNG.normal(size=5000),
    "huge mean": 1e14 + RNG.normal(size=5000) * 10,
    "heavy tail": RNG.standard_t(3, size=5000),
    "one outlier first": np.concatenate([[1e12], RNG.normal(size=4999)]),
    "one outlier last": np.concatenate([RNG.normal(size=4999), [-1e12]]),
    "two values": np.repeat([0.0, 1.0], [4990, 10]),
    "drifting": np.linspace(0, 1e6, 5000) + RNG.normal(size=5000),
    "skewed": RNG.exponential(size=5000) ** 2,
    "tiny": RNG.normal(size=5000) * 1e-40,
    "large": RNG.normal(size=5000) * 1e30,
    "mostly zero": np.where(RNG.random(5000) < 0.97, 0.0, RNG.normal(size=5000)),
    "four": np.array([1.0, 2.0, 4.0, 8.0]),
}


def of(*parts: np.ndarray) -> Distribution:
    found = Distribution()
    for part in parts:
        found.add(torch.from_numpy(part))
    return found


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("chunk", [64, 1 << 17])
def test_awkward_data_in_chunks_of_any_size(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "CHUNK", chunk)
    x = AWKWARD[name]
    found = of(x[: len(x) // 3], x[len(x) // 3 :]).shape()
    # subtracting a nearby value is exact, and spares the reference the mean's rounding
    near = 1e14 if name == "huge mean" else 0.0
    assert float(found.kurtosis) == pytest.approx(stats.kurtosis(x - near), rel=1e-9, abs=1e-9)
    assert float(found.rms) == pytest.approx(float(np.sqrt(np.mean(x**2))), rel=1e-12)
    assert float(found.mean) == pytest.approx(float(np.mean(x)), rel=1e-12, abs=1e-12 * np.abs(x).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_floats_are_summed_in_float64(dtype: torch.dtype) -> None:
    x = (torch.randn(40, 300) * 3 + 200).to(dtype)
    found = Distribution()
    found.add(x)
    wide = x.double().numpy().ravel()
    assert float(found.shape().kurtosis) == pytest.approx(stats.kurtosis(wide), rel=1e-9)
    assert float(found.shape().rms) == pytest.approx(float(np.sqrt(np.mean(wide**2))), rel=1e-12)


def test_parts_join_to_the_whole_in_any_order() -> None:
    parts = [RNG.normal(loc, 1 + loc**2, size=n) for loc, n in ((0, 7), (50, 1), (-3, 2000), (1e5, 3))]
    whole = np.concatenate(parts)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        found = joined(of(parts[i]) for i in order)
        assert found.n == len(whole)
        assert float(found.shape().kurtosis) == pytest.approx(stats.kurtosis(whole), rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0, 1e30, 1e-30])
def test_equal_values_have_no_kurtosis_however_they_are_cut(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "CHUNK", 7)
    found = of(np.full(1000, value), np.full(3, value))
    assert float(found.shape().rms) == pytest.approx(abs(value), rel=1e-12)
    assert torch.isnan(found.shape().kurtosis)
    assert "no spread" in found.no_kurtosis_reason()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isnan(stats.kurtosis(np.full(1003, value)))  # the reference agrees


def test_a_kurtosis_needs_four_values() -> None:
    three = of(np.array([1.0, 2.0, 4.0]))
    assert torch.isnan(three.shape().kurtosis)
    assert float(three.shape().rms) == pytest.approx(np.sqrt(7))
    assert three.no_kurtosis_reason() == "3 values: a kurtosis needs 4"
    assert torch.isnan(Distribution().shape().rms)
    assert Distribution().n == 0


def test_values_out_of_float64s_range_give_nothing_rather_than_noise() -> None:
    small = of(RNG.normal(size=100) * 1e-120)  # whose fourth powers are all 0
    assert torch.isnan(small.shape().kurtosis)
    large = of(RNG.normal(size=100) * 1e120)
    assert torch.isnan(large.shape().kurtosis)
    assert float(large.shape().rms) == pytest.approx(1e120, rel=0.3)


def test_what_is_not_finite_is_counted_and_makes_the_rest_nothing() -> None:
    x = RNG.normal(size=50)
    for bad, nan, inf, rms in (([np.nan, np.inf], 1, 1, np.nan), ([np.inf, -np.inf], 0, 2, np.inf)):
        for values in (np.concatenate([bad, x]), np.concatenate([x, bad])):
            found = of(values).shape()
            assert (int(found.nan), int(found.inf)) == (nan, inf)
            assert torch.isnan(found.kurtosis)
            np.testing.assert_equal(float(found.rms), rms)


def test_an_empty_tensor_adds_nothing() -> None:
    found = of(RNG.normal(size=10), np.empty(0))
    assert found.n == 10
    assert torch.isfinite(found.shape().kurtosis)


def test_autocast_and_inference_mode_change_nothing() -> None:
    x = torch.randn(1000) + 1000
    plain = Distribution()
    plain.add(x)
    inside = Distribution()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        inside.add(x * 1)
    assert torch.equal(plain.shape().kurtosis, inside.shape().kurtosis)
