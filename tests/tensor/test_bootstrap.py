"""Bootstrap intervals over examples against SciPy's and against a loop."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import bootstrap

import learnscope.tensor.bootstrap as module
from learnscope.tensor.bootstrap import ratio_interval


def _data(examples: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 40, (examples,), generator=generator).double()
    return tokens * torch.rand(examples, generator=generator, dtype=torch.float64) * 3, tokens


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    ratio: NDArray[np.float64] = above.sum(axis=axis) / below.sum(axis=axis)
    return ratio


def test_the_interval_is_scipys_up_to_chance() -> None:
    above, below = _data()
    reference = bootstrap(
        (above.numpy(), below.numpy()),
        _ratio,
        paired=True,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
        vectorized=True,
    ).confidence_interval
    low, high = ratio_interval(above, below, resamples=20_000)
    width = reference.high - reference.low
    assert low == pytest.approx(reference.low, abs=0.03 * width)
    assert high == pytest.approx(reference.high, abs=0.03 * width)


def test_the_interval_is_that_of_a_loop_over_the_same_draws_whatever_the_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    above, below = _data(7)
    generator = torch.Generator().manual_seed(5)
    ratios = [
        sum(float(above[i]) for i in chosen) / sum(float(below[i]) for i in chosen)
        for chosen in torch.randint(7, (50, 7), generator=generator).tolist()
    ]
    expected = np.percentile(ratios, [2.5, 97.5])
    np.testing.assert_allclose(ratio_interval(above, below, resamples=50, seed=5), expected, rtol=1e-12)
    monkeypatch.setattr(module, "DRAWN", 16)  # two resamples at a time
    np.testing.assert_allclose(ratio_interval(above, below, resamples=50, seed=5), expected, rtol=1e-12)


def test_it_draws_from_a_generator_of_its_own() -> None:
    above, below = _data()
    before = torch.get_rng_state()
    first = ratio_interval(above, below)
    assert torch.equal(before, torch.get_rng_state())
    assert ratio_interval(above, below) == first
    assert ratio_interval(above, below, seed=1) != first


def test_examples_that_count_for_nothing_change_nothing() -> None:
    above, below = _data()
    nothing = torch.zeros(5, dtype=torch.float64)
    assert ratio_interval(torch.cat([above, nothing]), torch.cat([below, nothing])) == ratio_interval(above, below)


def test_what_has_no_interval() -> None:
    none = torch.zeros(0)
    for above, below in (
        (none, none),
        (torch.tensor([2.0]), torch.tensor([3.0])),
        (torch.tensor([2.0, 0.0]), torch.tensor([3.0, 0.0])),
        (torch.tensor([1.0, math.nan, 2.0]), torch.ones(3)),
        (torch.tensor([1.0, math.inf, 2.0]), torch.ones(3)),
    ):
        assert all(math.isnan(end) for end in ratio_interval(above, below))
    assert ratio_interval(torch.full((9,), 0.5), torch.ones(9)) == (0.5, 0.5)


def test_sums_are_float64() -> None:
    """In float32 the small differences between examples would be lost beside the large common part."""
    above = torch.full((6,), 1e9, dtype=torch.float64) + torch.arange(6, dtype=torch.float64)
    low, high = ratio_interval(above, torch.ones(6, dtype=torch.float64))
    assert 0 <= low - 1e9 < 2.5 < high - 1e9 <= 5


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry per example is needed"):
        ratio_interval(torch.ones(3), torch.ones(4))
    with pytest.raises(ValueError, match="resamples=0"):
        ratio_interval(torch.ones(3), torch.ones(3), resamples=0)
