"""Angles against SciPy, intruders and exponents against constructions whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import linalg, stats
from torch import Tensor

from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.adapters.subspace import SIMILARITY, best_matches, rowwise, subspace_drifts
from learnscope.tensor.weights.singular import power_law


def basis(d: int, k: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q


@pytest.mark.parametrize(("i", "j"), [(3, 3), (2, 5), (5, 2), (1, 1)])
def test_angles_are_scipys(i: int, j: int) -> None:
    a, b = basis(9, i, 0), basis(9, j, 1)
    angles = linalg.subspace_angles(a.numpy(), b.numpy())
    truth = angles.max(), math.sqrt((np.sin(angles) ** 2).mean())
    np.testing.assert_allclose(subspace_drifts([(a, b)])[0], truth, atol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-10, 1e-5, 0.3, math.pi / 2 - 8e-9, math.pi / 2])
def test_small_and_large_angles_keep_their_digits(angle: float) -> None:
    a = torch.eye(4, dtype=torch.float64)[:, :2]
    b = a.clone()
    b[:, 1] = math.cos(angle) * a[:, 1] + math.sin(angle) * torch.eye(4, dtype=torch.float64)[:, 3]
    [(largest, drift)] = subspace_drifts([(a, b)])
    assert largest == pytest.approx(angle, rel=1e-9, abs=1e-15)
    assert drift == pytest.approx(math.sin(angle) / math.sqrt(2), rel=1e-9, abs=1e-15)


def test_a_span_within_a_larger_one_has_not_drifted() -> None:
    whole = basis(8, 4, 2)
    [(largest, drift)] = subspace_drifts([(whole, whole[:, 1:3])])
    assert largest == pytest.approx(0, abs=1e-14)
    assert drift == pytest.approx(0, abs=1e-14)


def test_pairs_of_all_shapes_together_are_scipys() -> None:
    """Spans near each other, far apart, one within the other, and orthogonal ones, in one call."""
    near = torch.linalg.qr(basis(9, 3, 0) + 1e-6 * basis(9, 3, 5)).Q
    whole = torch.eye(9, dtype=torch.float64)
    pairs = [
        (basis(9, 3, 0), basis(9, 3, 1)), (basis(9, 2, 2), basis(9, 5, 3)), (basis(9, 3, 0), near),
        (basis(7, 1, 0), basis(7, 1, 1)), (whole[:, :3], whole[:, 3:6]), (basis(9, 3, 6), basis(9, 3, 7)),
    ]  # fmt: skip
    for (a, b), (largest, drift) in zip(pairs, subspace_drifts(pairs), strict=True):
        angles = linalg.subspace_angles(a.numpy(), b.numpy())
        assert largest == pytest.approx(angles.max(), rel=1e-9, abs=1e-12)
        assert drift == pytest.approx(math.sqrt((np.sin(angles) ** 2).mean()), rel=1e-9, abs=1e-12)
    assert subspace_drifts([]) == []


@pytest.mark.parametrize("angle", [0.009, 0.011, 0.02])
def test_angles_on_both_sides_of_where_the_sine_takes_over(angle: float) -> None:
    a = basis(50, 4, 3)
    outside = torch.linalg.qr(torch.cat([a, basis(50, 1, 4)], 1)).Q[:, 4]
    b = a.clone()
    b[:, 0] = math.cos(angle) * a[:, 0] + math.sin(angle) * outside
    b = torch.linalg.qr(b @ basis(4, 4, 5)).Q  # the same span in other columns
    [(largest, drift)] = subspace_drifts([(a, b)])
    assert (largest, drift) == pytest.approx((angle, math.sin(angle) / 2), rel=1e-9)


def test_spans_are_compared_in_one_layout() -> None:
    """So that a resumed run gives the same digits; those of a decomposition have it, and are not copied."""
    here = torch.device("cpu")
    stack = torch.linalg.qr(torch.randn(3, 20, 4, dtype=torch.float64)).Q.contiguous()
    for span in stack.unbind():
        assert rowwise(span, here).data_ptr() == span.data_ptr()
        for other in (span.mT.contiguous().mT, span.float().double(), span.flip(0).flip(0)):
            assert rowwise(other, here).stride() == (4, 1)
            assert torch.equal(rowwise(other, here), other)
    assert rowwise(stack[0].float(), here).dtype is torch.float64
    apart = [span.mT.contiguous().mT for span in stack.unbind()]
    turned = list(stack.roll(1, 0).unbind())
    assert subspace_drifts(list(zip(apart, turned, strict=True))) == subspace_drifts(
        list(zip(stack.unbind(), turned, strict=True))
    )


def test_a_frozen_span_beside_moving_ones_has_not_turned() -> None:
    a, b = basis(30, 4, 0), basis(30, 4, 1)
    near = torch.linalg.qr(a + 1e-7 * b).Q
    drifts = subspace_drifts([(a, b), (a, a.clone()), (a, near)])
    assert drifts[1] == (0.0, 0.0)
    assert 0 < drifts[2][0] < 1e-6 < drifts[0][0]


def test_intruders_are_found_where_they_were_put() -> None:
    """W is diagonal; ΔW adds one direction spread over all of W's, larger than any: it resembles none."""
    weight = torch.diag(torch.arange(20, 0, -1, dtype=torch.float64))
    spread = torch.full((20, 1), 20**-0.5, dtype=torch.float64)
    matches = best_matches(weight, Factors(spread, spread.mT, 1000.0))
    assert (matches < SIMILARITY).sum() == 1
    assert matches[0] == pytest.approx(20**-0.5, rel=0.05)
    assert len(matches) == 10
    along = torch.eye(20, dtype=torch.float64)[:, 3:4]
    assert not (best_matches(weight, Factors(along, along.mT, 1000.0)) < SIMILARITY).any()
    everything = best_matches(weight, Factors(spread, spread.mT, 1000.0), k=50)
    assert (everything < 1.1).sum() == 20


def test_intruders_refuse_what_has_no_answer() -> None:
    with pytest.raises(ValueError, match=r"\[outputs, inputs\]"):
        best_matches(torch.zeros(3, 4), Factors(torch.ones(4, 1), torch.ones(1, 3)))
    with pytest.raises(ValueError, match="not finite"):
        best_matches(torch.full((2, 2), torch.nan), Factors(torch.ones(2, 1), torch.ones(1, 2)))


def brute_force(values: np.ndarray) -> tuple[float, float, float]:
    """SciPy's Kolmogorov–Smirnov statistic for every candidate, the law fitted to its tail."""
    best = (math.inf, 0.0, 0.0)
    for smallest in np.unique(values)[:-1]:
        tail = values[values >= smallest]
        alpha = 1 + len(tail) / np.log(tail / smallest).sum()
        distance = stats.kstest(tail, lambda x, a=alpha, s=smallest: 1 - (x / s) ** (1 - a)).statistic
        best = min(best, (float(distance), float(alpha), float(smallest)))
    return best


@pytest.mark.parametrize("seed", range(3))
def test_the_exponent_is_that_of_an_exhaustive_search(seed: int) -> None:
    values = np.random.default_rng(seed).lognormal(size=120)
    distance, alpha, smallest = brute_force(values)
    found = power_law(torch.from_numpy(values))
    assert found is not None
    assert (found.distance, found.alpha, found.smallest) == pytest.approx((distance, alpha, smallest), rel=1e-9)
    assert found.tail == (values >= smallest).sum()


def test_the_exponent_of_a_power_law_is_recovered() -> None:
    """Exact quantiles of a Pareto law of density exponent 3, above a bulk of small values."""
    tail = (1 - (torch.arange(500, dtype=torch.float64) + 0.5) / 500) ** -0.5
    found = power_law(torch.cat([torch.linspace(0.01, 0.9, 200, dtype=torch.float64), tail]))
    assert found is not None
    assert found.alpha == pytest.approx(3.0, abs=0.15)
    assert found.smallest >= 0.9


def test_too_few_equal_or_broken_values_have_no_exponent() -> None:
    assert power_law(torch.arange(1.0, 50.0)) is None
    assert power_law(torch.cat([torch.zeros(100), torch.arange(1.0, 50.0)])) is None
    assert power_law(torch.arange(1.0, 51.0)) is not None
    assert power_law(torch.ones(80)) is None
    assert power_law(torch.tensor([math.nan] * 80)) is None
    assert power_law(torch.empty(0)) is None
