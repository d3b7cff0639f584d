"""95 % confidence intervals: of a ratio of sums over examples (bootstrap), and of a mean over seeds (Student's t)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FEWEST = 6
TOO_FEW = f"an interval over examples needs {FEWEST} of them"
DRAWN = 1 << 21
"""Indices drawn at a time: 16 MB, whatever the number of examples."""


def ratio_interval(
    numerator: Tensor, denominator: Tensor, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of sum(numerator)/sum(denominator), both with one entry per example.

    Examples are resampled, not positions: the tokens of one text are not independent. Examples with denominator 0 are
    left out. The same seed draws the same examples, so that two calls are paired; for the interval of a difference
    over the same examples, pass the difference of their numerators. (nan, nan) with fewer than six examples, whose
    interval would cover too little to be called 95 %, or if a sum is not finite.

    >>> low, high = ratio_interval(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), torch.ones(6))
    >>> 1 <= low < 3.5 < high <= 6
    True
    """
    if numerator.ndim != 1 or numerator.shape != denominator.shape:
        raise ValueError(
            f"one entry per example is needed, not shapes {list(numerator.shape)} and {list(denominator.shape)}"
        )
    if resamples < 1:
        raise ValueError(f"resamples={resamples!r}: a whole number from 1")
    counts = denominator != 0
    above, below = numerator[counts].double().cpu(), denominator[counts].double().cpu()
    examples = above.numel()
    if examples < FEWEST or not bool((above.isfinite() & below.isfinite()).all()):
        return math.nan, math.nan
    generator = torch.Generator().manual_seed(seed)
    drawn, rows = [], max(1, DRAWN // examples)
    for start in range(0, resamples, rows):
        chosen = torch.randint(examples, (min(rows, resamples - start), examples), generator=generator)
        drawn.append(above[chosen].sum(1) / below[chosen].sum(1))
    low, high = torch.quantile(torch.cat(drawn), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval by Student's t, mean ± t(n−1)·s/√n with the unbiased s.

    Bounds are NaN for fewer than two values, or where one is not finite.

    >>> [round(x, 4) for x in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.4841, 4.4841]
    """
    from scipy.special import stdtrit

    n = len(values)
    if not n:
        return math.nan, math.nan, math.nan
    if not all(math.isfinite(value) for value in values):
        return sum(values) / n, math.nan, math.nan
    mean = math.fsum(values) / n
    if n < 2:
        return mean, math.nan, math.nan
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.975)) * spread / math.sqrt(n)
    return mean, mean - half, mean + half
