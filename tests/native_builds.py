"""Every build of the kernels that runs here, and awkward arrays for them."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import pytest

from learnscope import native

needed = pytest.mark.skipif(native.kernels is None and not os.environ.get("CI"), reason="no compiled kernels here")
LENGTHS = [0, 1, 15, 16, 17, 4095, 4096, 4097, 65535, 65536, 65537, 200_000]


def builds() -> list[Any]:
    """Every build that this processor can run: each needs all that the ones before it need."""
    names = ["_kernels", "_kernels_avx2", "_kernels_avx512"]
    first = importlib.import_module(f"learnscope.native.{names[0]}")
    runs_here = names[: names.index(first.best_build()) + 1]
    return [importlib.import_module(f"learnscope.native.{name}") for name in runs_here]


def awkward(length: int, kind: type[np.floating]) -> list[np.ndarray]:
    """Arrays of this length: ordinary, many orders of magnitude, equal, with zeros, and not finite."""
    rng = np.random.default_rng(length)
    ordinary = rng.normal(size=length).astype(kind)
    wide = ordinary * np.logspace(-40, 30, length).astype(kind)
    bad = ordinary.copy()
    bad[::7], bad[3::11], bad[5::13] = np.nan, np.inf, -np.inf
    return [ordinary, wide, np.full(length, 0.1, kind), np.clip(ordinary, -0.5, 0.7), np.maximum(ordinary, 0), bad]
