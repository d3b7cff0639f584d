"""Spectra from factors against the decomposition of the product, in float64."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learnscope.tensor.adapters.spectrum import (
    DEFICIENT,
    NOT_FINITE,
    ONE_VALUE,
    ZERO,
    Decomposed,
    Factors,
    decompose_factors,
    spectrum_numbers,
)  # fmt: skip


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reference(b: Tensor, a: Tensor, scaling: float = 1.0) -> np.ndarray:
    return np.linalg.svd(scaling * (b.double().numpy() @ a.double().numpy()), compute_uv=False)


def one(factors: Factors, *, vectors: bool = False) -> Decomposed:
    (found,) = decompose_factors([factors], vectors=vectors)
    return found


def numbers(*values: float) -> tuple[dict[str, float], dict[str, str]]:
    found = spectrum_numbers([torch.tensor(values, dtype=torch.float64)])
    reasons = {name: by_place[0] for name, by_place in found.reasons.items()}
    return {name: row[0] for name, row in found.values.items()}, reasons


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 8), st.floats(0.01, 50), st.integers(0, 99))
def test_values_are_those_of_the_product(m: int, n: int, r: int, scaling: float, seed: int) -> None:
    b, a = noise(m, r, seed=seed), noise(r, n, seed=seed + 100)
    found = one(Factors(b, a, scaling)).values.numpy()
    truth = reference(b, a, scaling)[: min(m, n, r)]
    assert found.shape == truth.shape
    np.testing.assert_allclose(found, truth, rtol=1e-9, atol=1e-12 * truth[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
def test_every_dtype_and_size(dtype: torch.dtype, scale: float) -> None:
    scale = scale if dtype in (torch.float64, torch.float32) else min(max(scale, 1e-3), 1e3)
    b, a = (noise(30, 3) * scale).to(dtype), (noise(3, 20, seed=1) * scale).to(dtype)
    np.testing.assert_allclose(one(Factors(b, a)).values.numpy(), reference(b, a)[:3], rtol=1e-10)


def test_equal_shapes_are_computed_together_and_in_order() -> None:
    shapes = [(8, 2, 6), (8, 2, 6), (5, 1, 9), (8, 2, 6)]
    updates = [Factors(noise(m, r, seed=i), noise(r, n, seed=i + 9), 1.0 + i) for i, (m, r, n) in enumerate(shapes)]
    for found, update in zip(decompose_factors(updates), updates, strict=True):
        np.testing.assert_allclose(found.values, reference(update.left, update.right, update.scaling)[: update.rank])
    assert decompose_factors([]) == []


def test_vectors_rebuild_the_update() -> None:
    factors = Factors(noise(12, 4), noise(4, 7, seed=1), 0.3, (noise(12, 4, seed=2), noise(4, 7, seed=3)))
    found = one(factors, vectors=True)
    assert found.left is not None
    assert found.right is not None
    rebuilt = found.left @ torch.diag(found.values) @ found.right.mT
    truth = 0.3 * noise(12, 4).double() @ noise(4, 7, seed=1).double()
    truth -= noise(12, 4, seed=2).double() @ noise(4, 7, seed=3).double()
    torch.testing.assert_close(rebuilt, truth, rtol=0, atol=1e-12)
    torch.testing.assert_close(factors.product(), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("moved", [1e-1, 1e-4, 1e-7])
def test_a_start_is_subtracted_without_losing_digits(moved: float) -> None:
    """The update is far smaller than the start: values agree to 1e-6 with exact rational arithmetic's stand-in."""
    b0, a0 = noise(20, 3).double(), noise(3, 10, seed=1).double()
    db, da = noise(20, 3, seed=2).double() * moved, noise(3, 10, seed=3).double() * moved
    b, a = b0 + db, a0 + da
    found = one(Factors(b, a, 2.0, (2.0 * b0, a0))).values.numpy()
    exact = 2 * ((b - b0) @ a + b0 @ (a - a0))
    truth = np.linalg.svd(exact.numpy(), compute_uv=False)[:6]
    np.testing.assert_allclose(found, truth, rtol=1e-6)


def test_a_start_that_has_not_moved_is_exactly_zero() -> None:
    b, a = noise(20, 3), noise(3, 10, seed=1)
    found = one(Factors(b, a, 1.5, (b.double() * 1.5, a)))
    assert found.values.tolist() == [0.0] * 6
    assert found.rank() == 0


def test_a_start_of_another_rank() -> None:
    b, a, b0, a0 = noise(9, 2), noise(2, 7, seed=1), noise(9, 3, seed=2), noise(3, 7, seed=3)
    truth = np.linalg.svd((b @ a).double().numpy() - (b0 @ a0).double().numpy(), compute_uv=False)
    found = one(Factors(b, a, 1.0, (b0, a0))).values.numpy()
    assert len(found) == 5
    np.testing.assert_allclose(found, truth[:5], atol=1e-5)


def test_a_product_that_vanishes_is_zero_and_not_rounding() -> None:
    """B's columns are opposite and A's rows equal: B A is zero though neither factor is."""
    column, row = noise(40, 1), noise(1, 30, seed=1)
    b, a = torch.cat([column, -column], 1), torch.cat([row, row])
    assert float(b.norm()) > 1
    assert one(Factors(b, a)).values.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_factors_that_are_not_finite_spoil_only_themselves(bad: float) -> None:
    good, broken = Factors(noise(6, 2), noise(2, 5)), Factors(noise(6, 2).fill_(bad), noise(2, 5))
    first, second, third = decompose_factors([good, broken, good])
    assert second.values.isnan().all()
    np.testing.assert_allclose(first.values, reference(good.left, good.right)[:2])
    assert torch.equal(first.values, third.values)
    found = spectrum_numbers([first.values, second.values])
    for name, by_place in found.reasons.items():
        assert by_place == {1: NOT_FINITE}, name
    assert set(found.reasons) == set(found.values)


def test_numbers_against_their_formulas() -> None:
    sigma = np.array([5.0, 3.0, 2.0, 1.5, 1.0, 0.5, 0.25])
    found, reasons = numbers(*sigma)
    p = sigma / sigma.sum()
    assert reasons == {}
    assert found == pytest.approx(
        {
            "largest_sv": 5.0, "smallest_sv": 0.25, "spectral_gap": 4.75, "leading_gap": 2.0, "condition_number": 20.0,
            "numerical_rank": 7, "effective_rank": np.exp(-(p * np.log(p)).sum()),
            "rank_utilisation": np.exp(-(p * np.log(p)).sum()) / 7,
            "stable_rank": (sigma**2).sum() / 25, "participation_ratio": sigma.sum() ** 2 / (sigma**2).sum(),
            "nuclear_norm": sigma.sum(), "frobenius_norm": np.linalg.norm(sigma),
            "top1_sv_ratio": 25 / (sigma**2).sum(), "top1_nuclear_share": 5 / sigma.sum(),
            "top5_sv_ratio": (sigma[:5] ** 2).sum() / (sigma**2).sum(),
            "top5_nuclear_share": sigma[:5].sum() / sigma.sum(),
            "top10_sv_ratio": 1.0, "top10_nuclear_share": 1.0,
        },
        rel=1e-12,
    )  # fmt: skip


def test_spectra_of_unequal_length_do_not_touch_each_other() -> None:
    rows = [[4.0, 2.0, 1.0], [3.0], [2.0, 1.0], [1e200, 1e199], [1e-200, 1e-201]]
    together = spectrum_numbers([torch.tensor(row, dtype=torch.float64) for row in rows])
    for place, row in enumerate(rows):
        alone, _ = numbers(*row)
        for name, value in alone.items():
            assert together.values[name][place] == pytest.approx(value, rel=1e-12, nan_ok=True), (name, row)
    assert together.values["condition_number"] == pytest.approx([4.0, 1.0, 2.0, 10.0, 10.0])
    assert together.values["stable_rank"][3:] == pytest.approx([1.01, 1.01])


def test_a_zero_update_has_norms_and_no_ratios() -> None:
    found, reasons = numbers(0.0, 0.0, 0.0)
    zero = {"largest_sv", "smallest_sv", "spectral_gap", "leading_gap", "numerical_rank", "nuclear_norm",
            "frobenius_norm"}  # fmt: skip
    assert {name for name, value in found.items() if value == 0} == zero
    assert {name for name, value in found.items() if math.isnan(value)} == set(found) - zero
    assert reasons == dict.fromkeys(set(found) - zero, ZERO)


def test_a_deficient_update_has_an_infinite_condition_number_and_says_so() -> None:
    found, reasons = numbers(2.0, 1.0, 1e-9)
    assert found["condition_number"] == math.inf
    assert found["numerical_rank"] == 2
    assert reasons == {"condition_number": DEFICIENT}
    found, reasons = numbers(2.0, 1.0, 1e-5)
    assert found["condition_number"] == pytest.approx(2e5)
    assert reasons == {}


def test_rank_one() -> None:
    found, reasons = numbers(3.0)
    assert (found["condition_number"], found["spectral_gap"], found["effective_rank"]) == (1.0, 0.0, 1.0)
    assert reasons == {"leading_gap": ONE_VALUE}


def test_values_descend() -> None:
    values = one(Factors(noise(50, 8), noise(8, 40, seed=1))).values.tolist()
    assert all(a >= b > 0 for a, b in pairwise(values))
