"""The noise around a trend: how large it is at each place, how far it remembers, and more noise like it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from learnscope.reading.gather import Floats

NEAR = 20
"""Values around a place from which the noise there is told from that elsewhere."""
LEAST = 0.05
"""Share of the noise of all values that the noise at a place is taken to be at least."""
NOISE_SHARE = 0.3
"""Share of what a fit leaves that must be noise for its size to be judged place by place."""


def local_spread(series: Floats, spread: float) -> Floats:
    """How large the noise is around each value, in units of that of all: it often shrinks as a curve settles.

    By medians of second differences, which neither the trend nor a jump moves. 1 everywhere for short series, and where
    what a fit leaves (`spread`) is not noise.
    """
    width = len(series) // 5
    if width < NEAR:
        return np.ones(len(series))
    bends = pd.Series(np.abs(np.pad(np.diff(series, 2), 1, mode="edge")))
    local: Floats = bends.rolling(width, center=True, min_periods=1).median().to_numpy(np.float64)
    whole = math.sqrt(float(np.mean(local**2)))
    if whole / (0.6745 * math.sqrt(6)) < NOISE_SHARE * spread:
        return np.ones(len(series))
    return np.maximum(local / whole, LEAST)


def autocorrelation(rest: Floats) -> float:
    """Of neighbours, at least 0; with the share that fitting a trend takes from it put back."""
    squares = float(rest @ rest)
    if squares <= 0:
        return 0.0
    raw = float(rest[1:] @ rest[:-1]) / squares
    if raw <= 2 / math.sqrt(len(rest)):  # no more than chance
        return 0.0
    return min(raw + (1 + 3 * raw) / len(rest), 0.95)


def noise_like(innovations: Floats, memory: float, shape: tuple[int, int], generator: np.random.Generator) -> Floats:
    """Rows of noise made of these innovations in random order, each value keeping `memory` of the one before."""
    rows, n = shape
    drawn = generator.permuted(np.tile(np.resize(innovations - innovations.mean(), n), (rows, 1)), axis=1)
    if memory:
        drawn[:, 0] /= math.sqrt(1 - memory**2)
        for place in range(1, n):
            drawn[:, place] += memory * drawn[:, place - 1]
    return drawn
