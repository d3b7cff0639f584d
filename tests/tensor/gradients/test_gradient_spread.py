"""Mean and centred squares of gradients, and of scopes made of them, against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learnscope.tensor.gradients.spread import SPREAD_CHUNK, gradient_spread
from learnscope.tensor.segments import Segments


def check(tensors: list[Tensor], rel: float = 1e-11) -> None:
    mean, centred = gradient_spread(tensors)
    for number, tensor in enumerate(tensors):
        x = (tensor.to_dense() if tensor.is_sparse else tensor).double().numpy().astype(np.longdouble)
        if x.size:
            assert float(mean[number]) == pytest.approx(float(x.mean()), rel=rel, abs=1e-300)
            assert float(centred[number]) == pytest.approx(float(((x - x.mean()) ** 2).sum()), rel=rel, abs=1e-300)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_sizes_and_layouts(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (1,), (3, 5), (SPREAD_CHUNK + 3,), (3, SPREAD_CHUNK), (0, 4)]
    tensors = [(torch.randn(shape, generator=generator) + 0.3).to(dtype) for shape in shapes]
    check([*tensors, tensors[2].t(), tensors[4].t()[::2]])


@pytest.mark.parametrize("offset", [1e-3, 1.0, 1e10])
@pytest.mark.parametrize("spread", [1e-3, 1e-7])
def test_a_spread_far_below_the_mean(offset: float, spread: float) -> None:
    """Σg² − (Σg)²/n has nothing left of it: 1e-14 of the squares, in float64 a percent."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(3 * SPREAD_CHUNK, generator=generator, dtype=torch.float64)
    drift = torch.linspace(-1, 1, 3 * SPREAD_CHUNK, dtype=torch.float64)
    check([offset * (1 + spread * (noise + drift))], rel=1e-7)


def test_equal_entries_have_no_spread() -> None:
    mean, centred = gradient_spread([torch.full((2 * SPREAD_CHUNK + 5,), 0.1)])
    assert float(mean) == pytest.approx(float(np.float32(0.1)), rel=1e-15)
    assert float(centred) < 1e-25


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_within_its_tensor(bad: float) -> None:
    tensors = [torch.ones(4), torch.tensor([1.0, bad, 2.0]), torch.tensor([1.0, 2.0])]
    mean, centred = gradient_spread(tensors)
    assert not mean[1].isfinite()
    assert centred[1].isnan()
    assert (mean[[0, 2]].tolist(), centred[[0, 2]].tolist()) == ([1.0, 1.5], [0.0, 0.5])


def test_what_a_sparse_gradient_does_not_store_is_zero() -> None:
    places = torch.tensor([[1, 1, 8]])
    check([torch.sparse_coo_tensor(places, torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), (10, 2))])
    check([torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 2), (10, 2))])


def test_no_gradients() -> None:
    mean, centred = gradient_spread([])
    assert mean.shape == centred.shape == (0,)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.sampled_from([0.0, 1.0, 1e6]), st.integers(0, 99))
def test_scopes_made_of_tensors(sizes: list[int], offset: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [offset + rng.normal(size=n) * rng.uniform(0, 2) for n in sizes]
    members = {"all": list(range(len(sizes))), "last": [len(sizes) - 1]}
    mean, centred = gradient_spread([torch.tensor(a) for a in arrays])
    middle, variance = Segments(members).spread(torch.tensor(sizes, dtype=torch.float64), mean, centred)
    for place, inside in enumerate(members.values()):
        x = np.concatenate([arrays[i] for i in inside])
        if x.size:
            assert float(middle[place]) == pytest.approx(x.mean(), rel=1e-12, abs=1e-12)
        if x.size > 1:
            assert float(variance[place]) == pytest.approx(x.var(ddof=1), rel=1e-8, abs=1e-12 * offset**2 * 1e-12)
        else:
            assert variance[place].isnan()


def test_two_nearly_constant_tensors_with_the_same_mean() -> None:
    """The variance between members must not be a difference of two large numbers either."""
    rng = np.random.default_rng(5)
    arrays = [1.0 + 1e-8 * rng.normal(size=1000) for _ in range(2)]
    mean, centred = gradient_spread([torch.tensor(a) for a in arrays])
    _, variance = Segments({"both": [0, 1]}).spread(torch.tensor([1000.0, 1000.0], dtype=torch.float64), mean, centred)
    exact = np.concatenate(arrays).astype(np.longdouble)
    assert float(variance) == pytest.approx(float(exact.var(ddof=1)), rel=1e-6)
