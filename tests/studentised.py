"""The studentised bootstrap by its definition, draw by draw, to compare intervals with."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def by_loop(above: Floats, below: Floats, draws: NDArray[np.int64]) -> tuple[float, float]:
    """The interval of Σ above/Σ below; `draws` are examples, a row a draw."""

    def ratio_and_error(a: Floats, b: Floats) -> tuple[float, float]:
        ratio = a.sum() / b.sum()
        return ratio, float(np.std((a - ratio * b) / b.mean(), ddof=1) / math.sqrt(len(a)))

    ratio, error = ratio_and_error(above, below)
    scores = []
    for chosen in draws:
        other, its_error = ratio_and_error(above[chosen], below[chosen])
        scores.append((other - ratio) / its_error)
    n = len(above)
    tail = 0.05 * n / (n + 64) / 2
    scores.sort()
    last = len(scores) - 1
    low, high = (ratio - scores[place] * error for place in (math.ceil((1 - tail) * last), math.floor(tail * last)))
    return (max(low, 0.0) if above.min() >= 0 else low), high


def drawn(n: int, resamples: int = 1000, seed: int = 0) -> NDArray[np.int64]:
    """The draws that an interval of n examples is made of."""
    return np.random.default_rng(seed).integers(n, size=(resamples, n))
