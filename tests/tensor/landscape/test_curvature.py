"""Eigenvalues and traces from products alone, against NumPy's dense solvers."""

from __future__ import annotations

import inspect
from itertools import product as all_of
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.sparse.linalg import eigsh

from learnscope.tensor.landscape.curvature import (
    NotFiniteError,
    Operator,
    Spectrum,
    basis_bytes,
    end_of_spectrum,
    mean_and_error,
    quadratic_forms,
    signs,
)

Matrix = np.ndarray[Any, Any]


def symmetric(n: int, seed: int = 0) -> Matrix:
    """A few large eigenvalues of both signs above a bulk, as Hessians have them."""
    random = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(random.standard_normal((n, n)))
    spectrum = random.standard_normal(n) * 0.1
    spectrum[: min(n, 5)] = [9.0, 6.0, 4.0, -3.0, -7.0][: min(n, 5)]
    return basis @ np.diag(spectrum) @ basis.T


def solve(matrix: Matrix, count: int, **options: Any) -> Spectrum:
    chosen = {"krylov": 20, "tolerance": 1e-6, "restarts": 50} | options
    return end_of_spectrum(lambda v: matrix @ v, len(matrix), count, **chosen)


@pytest.mark.parametrize("end", ["largest", "smallest"])
@pytest.mark.parametrize("n", [1, 2, 6, 20, 21, 90])
def test_both_ends_equal_the_dense_ones(n: int, end: Any) -> None:
    matrix = symmetric(n)
    count = min(3, n)
    found = solve(matrix, 3, end=end)
    dense = np.linalg.eigvalsh(matrix)
    wanted = dense[::-1][:count] if end == "largest" else dense[:count]
    np.testing.assert_allclose(found.values, wanted, rtol=1e-8, atol=1e-12)
    assert found.requested == count
    np.testing.assert_allclose(matrix @ found.vectors, found.vectors * found.values, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=0), 1, rtol=1e-10)


def test_largest_means_algebraically_not_in_size() -> None:
    matrix = -symmetric(60)  # its largest in size is −9
    assert solve(matrix, 1).values[0] == pytest.approx(7.0)
    negative = symmetric(60) - 20 * np.eye(60)
    assert solve(negative, 1).values[0] == pytest.approx(-11.0)


def test_float32_vectors() -> None:
    matrix = symmetric(80)
    found = solve(matrix.astype(np.float32), 2, dtype=np.float32, tolerance=1e-3)
    np.testing.assert_allclose(found.values, [9.0, 6.0], rtol=1e-5)


LOW_RANK = np.outer(np.arange(40.0), np.arange(40.0))


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((40, 40)), np.eye(40), -3 * np.eye(40), LOW_RANK],
    ids=["zero", "one", "minus three", "rank one"],
)
def test_a_basis_that_closes_at_once(matrix: Matrix) -> None:
    """The first product lies in the span already, and Lanczos goes on from random numbers: our own."""
    first, second = (solve(matrix, 2, tolerance=1e-3) for _ in range(2))
    np.testing.assert_allclose(first.values, np.linalg.eigvalsh(matrix)[::-1][:2], atol=1e-8)
    if "rng" in inspect.signature(eigsh).parameters:  # an older scipy goes on from numbers of its own
        np.testing.assert_array_equal(first.vectors, second.vectors)


def test_no_global_random_number_is_drawn_and_results_repeat() -> None:
    np.random.seed(4)
    before = np.random.get_state()[1].copy()
    matrix = symmetric(70)
    first, second = solve(matrix, 2), solve(matrix, 2)
    np.testing.assert_array_equal(first.vectors, second.vectors)
    np.testing.assert_array_equal(*[np.stack(list(signs(9, 3))) for _ in range(2)])
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_what_has_not_converged_is_left_out() -> None:
    random = np.random.default_rng(1)
    basis, _ = np.linalg.qr(random.standard_normal((300, 300)))
    spectrum = np.linspace(0, 1, 300)
    spectrum[-1] = 50.0  # one far out, which comes at once, above a bulk that does not
    matrix = basis @ np.diag(spectrum) @ basis.T
    found = solve(matrix, 3, krylov=8, restarts=2, tolerance=1e-10)
    assert found.requested == 3
    assert len(found.values) < 3
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(matrix)[::-1][: len(found.values)], rtol=1e-9)
    none = solve(matrix - np.outer(basis[:, -1], basis[:, -1]) * 50, 1, krylov=4, restarts=1, tolerance=1e-12)
    assert len(none.values) == 0


def test_a_product_that_is_not_finite_is_refused() -> None:
    operator = Operator(lambda v: v * np.array([1.0] * 29 + [np.nan]))
    with pytest.raises(NotFiniteError):
        end_of_spectrum(operator, 30, 1, krylov=10, tolerance=1e-3, restarts=3)
    assert operator.products == 1


def test_scaling_on_both_sides() -> None:
    matrix = symmetric(50)
    scale = np.random.default_rng(2).uniform(0.1, 5, 50)
    operator = Operator(lambda v: matrix @ v)
    found = end_of_spectrum(operator.scaled(scale), 50, 2, krylov=20, tolerance=1e-8, restarts=50)
    dense = np.linalg.eigvalsh(np.diag(scale) @ matrix @ np.diag(scale))
    np.testing.assert_allclose(found.values, dense[::-1][:2], rtol=1e-8)
    assert operator.products >= 20


def test_all_sign_vectors_give_every_blocks_trace_exactly() -> None:
    matrix = symmetric(7)
    every = iter(np.array(choice) for choice in all_of([-1.0, 1.0], repeat=7))
    sizes = [1, 4, 2]
    forms = quadratic_forms(lambda v: matrix @ v, every, sizes)
    assert forms.shape == (128, 3)
    diagonal = np.diag(matrix)
    np.testing.assert_allclose(forms.mean(0), [diagonal[0], diagonal[1:5].sum(), diagonal[5:].sum()], atol=1e-12)
    np.testing.assert_allclose(forms.sum(1).mean(), np.trace(matrix), atol=1e-12)


def test_the_trace_and_its_error_are_those_of_theory() -> None:
    matrix, m = symmetric(40), 4000
    forms = quadratic_forms(lambda v: matrix @ v, signs(40, m, seed=3), [40])
    mean, error = mean_and_error(forms[:, 0])
    off_diagonal = matrix - np.diag(np.diag(matrix))
    theory = np.sqrt(2 * (off_diagonal**2).sum() / m)  # Var v·Hv = 2 Σ_{i≠j} H_ij²
    assert error == pytest.approx(theory, rel=0.1)
    assert abs(mean - np.trace(matrix)) < 4 * theory


def test_the_error_of_a_few_samples() -> None:
    samples = np.array([[1.0, 2.0], [4.0, 2.5], [9.0, -7.0]])
    mean, error = mean_and_error(samples)
    np.testing.assert_allclose(mean, [14 / 3, -2.5 / 3])
    np.testing.assert_allclose(error, stats.sem(samples))


def test_signs_are_signs() -> None:
    drawn = np.stack(list(signs(500, 40)))
    assert set(drawn.ravel()) == {-1.0, 1.0}
    assert abs(drawn.mean()) < 4 / np.sqrt(drawn.size)
    assert not (drawn[0] == drawn[1]).all()


def test_a_diagonal_matrix_needs_one_sample_and_one_sample_has_no_error() -> None:
    forms = quadratic_forms(lambda v: np.arange(6.0) * v, signs(6, 1), [2, 4])
    np.testing.assert_array_equal(forms, [[1.0, 14.0]])
    mean, error = mean_and_error(forms)
    np.testing.assert_array_equal(mean, [1.0, 14.0])
    assert np.isnan(error).all()


def test_memory_counts_the_whole_basis() -> None:
    assert basis_bytes(10**6, 20, 1, 4) >= 20 * 10**6 * 4
    assert basis_bytes(5, 20, 1, 8) < 20 * 5 * 8  # never more vectors than entries, and a few
