"""The kernel that compares two copies of weights: the same bits from every build, and nothing else is written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from native_builds import LENGTHS, awkward, builds, needed

CUTS = np.array([1e-3, -1.0, 0.0, np.inf, -np.inf], np.float32).astype(np.float64)
Arrays = list[np.ndarray]


def pairs(length: int) -> tuple[Arrays, Arrays]:
    """Every awkward array beside a near one, beside one of another kind, and beside itself."""
    kinds = [array.astype(np.float32) for array in awkward(length, np.float32)]
    with np.errstate(invalid="ignore"):
        near = [array + np.float32(1e-3) * array[::-1] for array in kinds]
    return near + kinds + kinds, kinds + kinds[1:] + kinds[:1] + [array.copy() for array in kinds]


def expected(new: np.ndarray, old: np.ndarray) -> list[float]:
    with np.errstate(all="ignore"):
        change = (new - old).astype(np.float64)
        size, finite = np.abs(change), np.isfinite(change).all()
        total = math.fsum(change) if finite else change.sum()
        spread = (
            ((change - total / len(change)) ** 2).sum() if finite and len(change) else (0.0 if finite else math.nan)
        )
        flips = ((new < 0) & (old > 0)) | ((new > 0) & (old < 0))
        odd = np.isnan(change).sum(), np.isinf(change).sum()
        sums = total, size.sum(), (change**2).sum(), spread
        largest = size.max(initial=0.0)
        before = (old.astype(np.float64) ** 2).sum()
        bits = (new.view(np.int32) != old.view(np.int32)).sum()
        return [*sums, largest, before, flips.sum(), bits, *odd, *((size <= cut).sum() for cut in CUTS)]


@needed
@pytest.mark.parametrize("length", LENGTHS)
def test_statistics_of_changes(length: int) -> None:
    new, old = pairs(length)
    right = np.array([expected(*pair) for pair in zip(new, old, strict=True)]).T
    for build in builds():
        out = np.full((10 + len(CUTS), len(new)), 99.0)
        build.change_sums(new, old, CUTS, out, 1, False)
        np.testing.assert_array_equal(out[6:], right[6:])
        np.testing.assert_array_equal(out[4], right[4])
        np.testing.assert_allclose(out[1:4], right[1:4], rtol=2e-6)
        np.testing.assert_allclose(out[5], right[5], rtol=2e-6)
        slack = np.where(np.isfinite(right[1]), 1e-6 * right[1], 0)
        same = np.isclose(out[0], right[0], rtol=1e-6, atol=0, equal_nan=True) | (np.abs(out[0] - right[0]) <= slack)
        assert same.all()


@needed
def test_a_spread_keeps_its_digits_where_all_moved_alike() -> None:
    rng = np.random.default_rng(0)
    old = np.zeros(200_001, np.float32)
    new = (1 + 1e-6 * rng.normal(size=old.size)).astype(np.float32)
    change = (new - old).astype(np.float64)
    for build in builds():
        out = np.empty((10, 1))
        build.change_sums([new], [old], np.empty(0), out, 1, False)
        assert out[3, 0] == pytest.approx(((change - change.mean()) ** 2).sum(), rel=1e-6)


@needed
def test_bits_depend_neither_on_the_build_nor_on_threads_nor_on_renewing() -> None:
    parts = [pairs(length) for length in (*LENGTHS, 1_500_000)]
    new, old = ([array for part in parts for array in part[side]] for side in (0, 1))
    found = []
    for build in builds():
        for threads in (1, 2, 3, 200, 0, -5):
            out = np.empty((10 + len(CUTS), len(new)))
            build.change_sums(new, old, CUTS, out, threads, False)
            found.append(out)
        copies = [array.copy() for array in old]
        out = np.empty((10 + len(CUTS), len(new)))
        build.change_sums(new, copies, CUTS, out, 2, True)
        found.append(out)
        for copy, array in zip(copies, new, strict=True):
            np.testing.assert_array_equal(copy.view(np.int32), array.view(np.int32))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


ONE = np.ones(6, np.float32)


@needed
@pytest.mark.parametrize(
    ("new", "old", "cuts", "out", "renew", "error"),
    [
        ([ONE], [], np.empty(0), np.zeros((10, 1)), False, ValueError),
        ([ONE], [ONE[:3]], np.empty(0), np.zeros((10, 1)), False, ValueError),
        ([ONE], [ONE], np.empty(1), np.zeros((10, 1)), False, ValueError),
        ([ONE], [ONE], np.empty(33), np.zeros((43, 1)), False, ValueError),
        ([ONE], [ONE], np.empty(0, np.float32), np.zeros((10, 1)), False, TypeError),
        ([ONE], [ONE.astype(np.float64)], np.empty(0), np.zeros((10, 1)), False, TypeError),
        ([ONE[::2]], [ONE[:3]], np.empty(0), np.zeros((10, 1)), False, (ValueError, BufferError)),
        ([ONE.reshape(2, 3)], [ONE.reshape(3, 2).T], np.empty(0), np.zeros((10, 1)), False, ValueError),
        ([ONE + 1], [frozen(ONE.copy())], np.empty(0), np.zeros((10, 1)), True, ValueError),
        ([ONE + 1, ONE], [ONE.copy(), "text"], np.empty(0), np.zeros((10, 2)), True, TypeError),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    new: Arrays, old: Arrays, cuts: np.ndarray, out: np.ndarray, renew: bool, error: Any
) -> None:
    for build in builds():
        with pytest.raises(error):
            build.change_sums(new, old, cuts, out, 1, renew)
        assert not out.any()
        assert all(isinstance(array, str) or (array == 1).all() for array in old)
    with pytest.raises(TypeError):
        builds()[0].change_sums(new, old)
