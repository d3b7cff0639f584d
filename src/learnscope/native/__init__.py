"""Kernels in C for arrays in the memory of the host: one pass where NumPy and torch take one for every number.

They are compiled when learnscope is installed, if there is a compiler. Without them, or with `LEARNSCOPE_NATIVE=0`, the
same numbers come from torch and NumPy, in more time.
"""

from __future__ import annotations

import importlib
import os
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


class Kernels(Protocol):
    """What the kernels do. Arrays have no gaps, and results are written into `out`, which the caller has made.

    `threads` matter from a million entries on; the bits of a result depend neither on them nor on the processor.
    """

    def has_avx2(self) -> bool:
        """Whether this processor can run the kernels that were compiled for AVX2."""

    def gradient_sums(self, arrays: list[NDArray[np.floating]], out: Numbers, threads: int, /) -> None:
        """Of each float32 or float64 array Σx², entries = 0, NaN, ±∞, max|x| without NaN, entries as large as that.

        `out` has a row for each. As large are NaN if all entries are 0 or one is not finite.
        """


def _loaded() -> Kernels | None:
    """The kernels for this processor, if they have been compiled."""
    if os.environ.get("LEARNSCOPE_NATIVE") == "0":
        return None
    found = None
    try:
        found = _module("_kernels")
        return _module("_kernels_avx2") if found.has_avx2() else found
    except ImportError:  # there was no compiler when learnscope was installed, or none that knows AVX2
        return found


def _module(name: str) -> Kernels:
    return cast(Kernels, importlib.import_module(f"learnscope.native.{name}"))


kernels = _loaded()
"""None where there are none."""
