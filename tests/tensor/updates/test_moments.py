"""Sums over moments against NumPy in float64, on awkward inputs, and how much memory they take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from learnscope.tensor.updates.moments import (
    CHUNK,
    COMPARED,
    ENTRIES,
    FIRST,
    GRADIENT,
    INNER,
    LARGEST_STEP,
    NOISE,
    SECOND,
    STEP,
    WEIGHT,
    Remembered,
    bias_corrections,
    fixed_entries,
    moment_sums,
    signal_to_noise,
    weighted_median,
)


def made(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0, **more: Any) -> Remembered:
    generator = torch.Generator().manual_seed(seed)
    w, m, g = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
    v = (torch.randn(shape, generator=generator).square() * 3 + 0.1).to(dtype)
    given: dict[str, Any] = {"corrections": (0.4, 0.02), "rate": 3e-3, "eps": 1e-5, "gradient": g, **more}
    return Remembered(weight=w, first=m * 0.1, second=v, **given)


def numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.double().numpy()


def expected(one: Remembered) -> dict[int, float]:
    m, v = numbers(one.first) / one.corrections[0], numbers(one.second) / one.corrections[1]
    used = v if one.largest is None else numbers(one.largest) / one.corrections[1]
    step = one.rate * m / (np.sqrt(used) + one.eps)
    g = numbers(one.gradient)
    return {
        FIRST: (m**2).sum(), SECOND: v.sum(), NOISE: np.maximum(v - m**2, 0).sum(), STEP: (step**2).sum(),
        WEIGHT: (numbers(one.weight) ** 2).sum(), INNER: (m * g).sum(), GRADIENT: (g**2).sum(),
        COMPARED: (m**2).sum(), ENTRIES: m.size, LARGEST_STEP: np.abs(step).max(),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (3, CHUNK), (CHUNK + 1,), (2, 3, 20_001)])
def test_sums_are_numpys(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    one = made(shape, dtype)
    found = moment_sums(one).tolist()
    for column, value in expected(one).items():
        assert found[column] == pytest.approx(value, rel=1e-12, abs=1e-12 * np.sqrt(one.weight.numel())), column


def test_amsgrads_maximum_is_in_the_step_and_nowhere_else() -> None:
    plain = made((300,))
    largest = plain.second * torch.linspace(1, 3, 300)
    one = made((300,), largest=largest)
    found, without = moment_sums(one), moment_sums(plain)
    for column, value in expected(one).items():
        assert float(found[column]) == pytest.approx(value, rel=1e-12)
    assert found[STEP] < without[STEP]
    assert found[SECOND] == without[SECOND]


def test_memory_orders_may_differ() -> None:
    one = made((40, 30))
    other = Remembered(
        weight=one.weight.t().contiguous().t(), first=one.first, second=one.second.t().contiguous().t(),
        gradient=one.gradient, corrections=one.corrections, rate=one.rate, eps=one.eps,
    )  # fmt: skip
    torch.testing.assert_close(moment_sums(other), moment_sums(one), rtol=1e-13, atol=0)


def test_no_gradient_no_second_moment_nothing_at_all() -> None:
    sums = moment_sums(Remembered(weight=torch.ones(3), first=torch.full((3,), 2.0))).tolist()
    assert (sums[FIRST], sums[WEIGHT], sums[ENTRIES]) == (12.0, 3.0, 3.0)
    assert (sums[INNER], sums[COMPARED], sums[SECOND], sums[STEP]) == (0.0, 0.0, 0.0, 0.0)
    assert moment_sums(made((0, 4))).tolist() == [0.0] * 10


def test_maximising_turns_the_gradient_around() -> None:
    assert float(moment_sums(made((50,), ascending=True))[INNER]) == -float(moment_sums(made((50,)))[INNER])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_hidden(bad: float) -> None:
    for name in ("first", "second", "weight", "gradient"):
        one = made((2 * CHUNK,))
        getattr(one, name)[7] = bad
        sums = moment_sums(one)
        affected = {"first": FIRST, "second": SECOND, "weight": WEIGHT, "gradient": GRADIENT}[name]
        assert not sums[affected].isfinite()
        if name in ("first", "second"):
            # an infinite m̂ has v̂ − m̂² = −∞, which is no noise
            assert sums[NOISE].isfinite() == (name == "first" and bad == math.inf)
        if name == "first":
            assert not sums[LARGEST_STEP].isfinite()


def test_tiny_and_huge_moments_are_not_lost() -> None:
    for scale in (1e-30, 1e18):
        one = Remembered(
            weight=torch.ones(4), first=torch.full((4,), scale), second=torch.full((4,), scale**2, dtype=torch.float64),
            gradient=torch.full((4,), scale),
        )  # fmt: skip
        sums = moment_sums(one)
        assert float(sums[FIRST]) == pytest.approx(4 * float(np.float32(scale)) ** 2, rel=1e-12)
        assert float(sums[INNER] / (sums[COMPARED] * sums[GRADIENT]).sqrt()) == pytest.approx(1.0, abs=1e-12)


def test_sparse_gradients_and_buffers() -> None:
    dense = torch.zeros(6, 2)
    dense[[1, 4]] = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    one = Remembered(weight=torch.ones(6, 2), first=(2 * dense).to_sparse(), gradient=dense.to_sparse())
    sums = moment_sums(one)
    assert float(sums[FIRST]) == pytest.approx(4 * 14.25)
    assert float(sums[INNER]) == pytest.approx(2 * 14.25)


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that an operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.nbytes = max(self.nbytes, tensor.untyped_storage().nbytes())
        return out


def test_nothing_as_large_as_the_parameter_is_made() -> None:
    one = made((64, CHUNK // 2))
    odd = made((3, 5 * CHUNK))
    for remembered in (one, odd):
        with Largest() as seen:
            moment_sums(remembered)
            signal_to_noise(remembered, 128, 0)
        assert 0 < seen.nbytes <= 8 * CHUNK
        assert seen.nbytes < remembered.weight.nbytes / 2


def test_bias_corrections_are_those_of_the_definition() -> None:
    for step in (1, 7, torch.tensor(7.0), torch.tensor(100_000.0)):
        first, second = bias_corrections({"betas": (0.9, 0.999)}, step)
        assert first == pytest.approx(1 - 0.9 ** float(step), rel=1e-14)
        assert second == pytest.approx(1 - 0.999 ** float(step), rel=1e-14)
    assert bias_corrections({"betas": (0.0, torch.tensor(0.5))}, 2) == (1.0, 0.75)


def test_signal_to_noise_of_each_entry() -> None:
    one = Remembered(
        weight=torch.zeros(5),
        first=torch.tensor([0.3, -0.4, 0.0, 0.0, 2.0]),
        second=torch.tensor([0.34, 0.16, 0.0, 1.0, 1.0]),
    )
    ratios = signal_to_noise(one, 10, 0).tolist()
    assert ratios[0] == pytest.approx(0.3 / 0.5, rel=1e-6)
    assert ratios[1] == math.inf  # 0.4² is 0.16 up to rounding: no noise that float32 could tell
    assert ratios[2] == -1.0  # never a gradient
    assert ratios[3] == 0.0
    assert ratios[4] == math.inf  # v̂ < m̂²
    broken = Remembered(weight=torch.zeros(1), first=torch.tensor([math.nan]), second=torch.ones(1))
    assert math.isnan(signal_to_noise(broken, 10, 0).item())


def test_rounding_is_no_noise() -> None:
    """After one step m̂ = g and v̂ = g², but for the rounding of the stored moments."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        g = torch.randn(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        one = Remembered(
            weight=g, first=(0.1 * g).to(dtype), second=(0.001 * g.square()).to(dtype), corrections=(0.1, 0.001)
        )
        assert signal_to_noise(one, 500, 0).isinf().all()
        assert moment_sums(one)[NOISE] == 0


def test_the_sample_stays_the_same_and_follows_the_order_of_the_entries() -> None:
    places = fixed_entries(10_000, 64, 3, torch.device("cpu"))
    before = torch.get_rng_state()
    assert torch.equal(places, fixed_entries(10_000, 64, 3, torch.device("cpu")))
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(places, fixed_entries(10_000, 64, 4, torch.device("cpu")))
    turned = torch.arange(10_000.0).view(100, 100).t()
    assert torch.equal(torch.take(turned, places), turned.reshape(-1)[places])


@pytest.mark.parametrize("seed", range(20))
def test_the_weighted_median_is_that_of_repeated_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    values, times = rng.integers(0, 6, n).astype(float), rng.integers(1, 5, n)
    found = weighted_median(torch.tensor(values), torch.tensor(times.astype(float)))
    assert found == np.median(np.repeat(values, times))


def test_the_median_of_nothing_of_nan_and_of_infinities() -> None:
    assert weighted_median(torch.tensor([]), torch.tensor([])) is None
    assert math.isnan(weighted_median(torch.tensor([1.0, math.nan, 2.0]), torch.ones(3)))  # type: ignore[arg-type]
    assert weighted_median(torch.tensor([1.0, math.inf, math.inf]), torch.ones(3)) == math.inf
    assert weighted_median(torch.tensor([1.0, 2.0, math.inf]), torch.ones(3)) == 2.0
