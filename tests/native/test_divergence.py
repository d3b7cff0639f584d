"""The kernel that compares logits: against NumPy in float64, in every build."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from native_builds import builds, needed


def logits(rows: int, width: int, apart: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Those of a reference, of a variant, and weights e^(reference − its largest)."""
    rng = np.random.default_rng(width)
    a = (3 * rng.normal(size=(rows, width))).astype(np.float32)
    b = (a + apart * rng.normal(size=a.shape)).astype(np.float32)
    return a, b, np.exp(a - a.max(1, keepdims=True))


@needed
@pytest.mark.parametrize("width", [2, 15, 16, 127, 128, 129, 1000])
@pytest.mark.parametrize("apart", [0.0, 1e-6, 1e-3, 0.05, 0.3, 4.0, 18.0])
def test_sums_of_rows(width: int, apart: float) -> None:
    a, b, weights = logits(7, width, apart)
    d = (b - a).astype(np.float64)
    curve = np.where(np.abs(d) < 1e-2, d**2 * (1 / 2 + d / 6 + d**2 / 24 + d**3 / 120), np.expm1(d) - d)
    wide = weights.astype(np.float64)
    right = [(wide * d).sum(1), (wide * curve).sum(1), (d**2).sum(1), ((a.astype(np.float64) + b) * d).sum(1)]
    sizes = [
        (wide * abs(d)).sum(1),
        (wide * curve).sum(1),
        (d**2).sum(1),
        (abs(a.astype(np.float64) + b) * abs(d)).sum(1),
    ]
    found = []
    for build in builds():
        out, first = np.full((4, 7), 99.0), np.full(7, 99)
        for threads in (1, 3):
            build.divergence_sums(a, b, weights, out, first, threads)
            found.append(out.copy())
        assert (np.abs(out - right) <= 1e-6 * np.array(sizes)).all()
        np.testing.assert_array_equal(first, b.argmax(1))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@needed
@pytest.mark.parametrize("width", [20, 128, 400])
def test_what_is_not_finite_and_ties(width: int) -> None:
    a, b, weights = logits(8, width, 0.1)
    b[0, 3], b[1, -1], b[2, :2], b[3], b[4, 5] = np.nan, np.inf, 50, -np.inf, -np.inf
    a[5, 2], a[6, 4], b[6, 4] = -np.inf, -np.inf, -np.inf
    b[7, width // 2 :] = 77
    for build in builds():
        out, first = np.empty((4, 8)), np.empty(8, np.int64)
        build.divergence_sums(a, b, weights, out, first, 1)
        assert first.tolist() == [-1, *b[1:].argmax(1)]
        assert not np.isfinite(out[2, :7]).any(where=np.array([True, True, False, True, True, True, True]))
        assert np.isfinite(out[:, 7]).all()


@needed
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, np.zeros((3, 4), np.float32)), (1, np.zeros((4, 5), np.float64)), (2, np.zeros((5, 4), np.float32).T),
        (3, np.zeros((4, 3))), (3, np.zeros((4, 4), np.float32)), (4, np.zeros(3, np.int64)),
        (4, np.zeros(4, np.int32)), (5, None),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(place: int, value: Any) -> None:
    for build in builds():
        matrix, out, first = np.ones((4, 5), np.float32), np.zeros((4, 4)), np.zeros(4, np.int64)
        given: list[Any] = [matrix, matrix, matrix, out, first, 1]
        given[place] = value
        with pytest.raises((TypeError, ValueError, BufferError)):
            build.divergence_sums(*given)
        assert not out.any()
