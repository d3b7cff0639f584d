"""The kernels that installing compiled: both of them give the same bits, and neither touches what it should not."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from learnscope import native
from native_builds import LENGTHS, awkward, builds, needed


def test_where_tests_have_to_run_everything_there_are_kernels() -> None:
    if os.environ.get("CI"):
        assert native.kernels is not None


def test_they_can_be_switched_off() -> None:
    code = "from learnscope import native; print(native.kernels)"
    off = {**os.environ, "LEARNSCOPE_NATIVE": "0"}
    said = subprocess.run([sys.executable, "-c", code], env=off, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "None"


def expected(values: np.ndarray) -> list[float]:
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        sizes = np.abs(wide[~np.isnan(wide)])
        largest = sizes.max(initial=0)
        counted = np.isfinite(wide).all() and largest > 0
        counts = (wide == 0).sum(), np.isnan(wide).sum(), np.isinf(wide).sum()
        return [(wide**2).sum(), *counts, largest, (sizes == largest).sum() if counted else np.nan]


@needed
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("length", LENGTHS)
def test_sums_of_gradients(kind: type[np.floating], length: int) -> None:
    arrays = awkward(length, kind)
    for build in builds():
        out = np.full((6, len(arrays)), 99.0)
        build.gradient_sums(arrays, out, 1)
        np.testing.assert_allclose(out, np.array([expected(array) for array in arrays]).T, rtol=1e-13)


@needed
def test_bits_depend_neither_on_the_build_nor_on_threads() -> None:
    arrays = [array for length in (*LENGTHS, 1_500_000) for array in awkward(length, np.float32)]
    found = []
    for build in builds():
        for threads in (1, 2, 3, 200, 0, -5):
            out = np.empty((6, len(arrays)))
            build.gradient_sums(arrays, out, threads)
            found.append(out)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@needed
@pytest.mark.parametrize(
    ("arrays", "out", "error"),
    [
        ([np.ones(3, np.float32)], np.zeros(5), ValueError),
        ([np.ones(3, np.float32)], np.zeros((6, 2)), ValueError),
        ([np.ones(3, np.float32)], np.zeros((6, 1), np.float32), TypeError),
        ([np.ones(3, np.float32)], np.zeros((6, 2))[:, :1], (ValueError, BufferError)),
        ([np.ones(3, np.int32)], np.zeros((6, 1)), TypeError),
        ([np.ones(3, np.complex64)], np.zeros((6, 1)), TypeError),
        ([np.ones(3, ">f4")], np.zeros((6, 1)), TypeError),
        ([np.ones(3, np.dtype([("a", "f4")]))], np.zeros((6, 1)), TypeError),
        ([np.ones(6, np.float32)[::2]], np.zeros((6, 1)), (ValueError, BufferError)),
        ([np.ones(2, np.float32), "text"], np.zeros((6, 2)), TypeError),
        (np.ones((2, 3), np.float32), np.zeros((6, 2)), TypeError),
        ([b"abcd"], np.zeros((6, 1)), TypeError),
    ],
)
def test_what_does_not_fit_is_refused(arrays: Any, out: np.ndarray, error: type[Exception]) -> None:
    for build in builds():
        before = out.copy()
        with pytest.raises(error):
            build.gradient_sums(arrays, out, 1)
        np.testing.assert_array_equal(out, before)
    frozen = np.zeros((6, 1))
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        builds()[0].gradient_sums([np.ones(3, np.float32)], frozen, 1)
    with pytest.raises(TypeError):
        builds()[0].gradient_sums([np.ones(3, np.float32)], np.zeros((6, 1)))
    with pytest.raises(TypeError):
        builds()[0].gradient_sums([np.ones(3, np.float32)], np.zeros((6, 1)), "1")
