"""95 % confidence intervals: of means over examples, of shares, of differences, and of means over seeds; no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""
FEWEST = 8
"""Examples that an interval over examples needs: with fewer it was not tried how often it holds the truth."""
_WIDENED = 64
"""Examples at which half of the tails of 5 % are left out."""
DRAWN = 1 << 21
"""Indices drawn at a time: 16 MB, whatever the number of examples."""
_ALIKE = 1e-6
"""Relative difference of values below which it is the rounding of float32."""
_SAME = 1e-12
"""Share of the squares below which a variance is rounding."""

_WITHIN = 0.1
"""The correlation of two positions of one example that is allowed for where the data do not show it."""

Interval = tuple[float, float]
Floats = NDArray[np.float64]


class MeanInterval(NamedTuple):
    """The ends; NaN if there is no interval, and then the reason for that and what helps."""

    low: float
    high: float
    reason: str | None = None


def wilson(share: float, n: float) -> Interval:
    """Wilson's score interval of a share of `n` examples: valid for few examples too, and near 0 and 1.

    >>> low, high = wilson(0.5, 50)
    >>> round(low, 4), round(high, 4)
    (0.3664, 0.6336)
    """
    spread = Z * sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    centre, scale = share + Z**2 / (2 * n), 1 + Z**2 / n
    low, high = (centre - spread) / scale, (centre + spread) / scale
    # exactly 0 and 1 at the ends, not 5e-17
    return max(low, 0.0) if share > 0 else 0.0, min(high, 1.0) if share < 1 else 1.0


def difference(first: tuple[float, int], second: tuple[float, int]) -> Interval:
    """Newcombe's interval of the difference between two shares of different examples, from their score intervals.

    >>> low, high = difference((56 / 70, 70), (48 / 80, 80))
    >>> round(low, 4), round(high, 4)
    (0.0524, 0.3339)
    """
    return difference_of_estimates((first[0], *wilson(*first)), (second[0], *wilson(*second)))


def difference_of_estimates(first: tuple[float, float, float], second: tuple[float, float, float]) -> Interval:
    """The interval of p − q from those of p and q, each given as (value, low, high), of different examples.

    Newcombe's way for any two intervals: d − √((p − l_p)² + (u_q − q)²), d + √((u_p − p)² + (q − l_q)²) (Zou and
    Donner 2008). For the same examples, whose errors mostly go the same way, it is wider than necessary.

    >>> low, high = difference_of_estimates((0.8, 0.69, 0.88), (0.6, 0.49, 0.7))
    >>> round(low, 2), round(high, 2)
    (0.05, 0.34)
    """
    (p, p_low, p_high), (q, q_low, q_high) = first, second
    return p - q - math.hypot(p - p_low, q_high - q), p - q + math.hypot(p_high - p, q - q_low)


def within_difference(
    strata: Iterable[tuple[tuple[float, int], tuple[float, int]]],
) -> tuple[float, Interval]:
    """The difference between two shares within strata, so that the make-up of the two groups does not cause it.

    Σ w_k (p_k − q_k), with the weights of Mantel and Haenszel, w_k ∝ n_k m_k/(n_k + m_k). The interval combines
    Wilson's intervals of all shares as Newcombe's does for one difference, d − √Σ w_k²((p_k − l_k)² + (u_k − q_k)²).
    For a single stratum it is Newcombe's, and its width is never 0.

    >>> value, (low, high) = within_difference([((1.0, 20), (0.5, 40)), ((0.9, 10), (0.4, 30))])
    >>> round(value, 3), round(low, 3), round(high, 3)
    (0.5, 0.311, 0.614)
    """
    pairs = list(strata)
    weights = [n * m / (n + m) for (_, n), (_, m) in pairs]
    total = sum(weights)
    if not total > 0:
        raise ValueError("there is no stratum with examples on both sides")
    value = below = above = 0.0
    for weight, ((p, n), (q, m)) in zip(weights, pairs, strict=True):
        if not weight:
            continue
        share = weight / total
        low, high = difference((p, n), (q, m))
        value += share * (p - q)
        below += share**2 * (p - q - low) ** 2
        above += share**2 * (high - p + q) ** 2
    return value, (value - sqrt(below), value + sqrt(above))


def ratio_interval(
    numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> MeanInterval:
    """The interval of Σ numerator/Σ denominator, both with one entry per example: a mean over positions, say.

    Examples are drawn again, not positions: the tokens of one text are not independent. Examples with denominator 0
    are left out. For the difference over the same examples, pass the difference of their numerators. `ratio_ends` says
    how the ends are found and how often they hold the truth.

    >>> low, high, reason = ratio_interval(range(20), [1.0] * 20)
    >>> 3 < low < 9.5 < high < 16, reason
    (True, None)
    >>> ratio_interval([0.5, 0.7, 0.1], [1.0, 1.0, 1.0]).reason
    '3 examples are too few: an interval over examples needs 8, so give more'
    """
    above, below = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    if above.ndim != 1 or above.shape != below.shape:
        raise ValueError(f"one entry per example is needed, not shapes {list(above.shape)} and {list(below.shape)}")
    if resamples < 1:
        raise ValueError(f"resamples={resamples!r}: a whole number from 1")
    above, below = above[below != 0], below[below != 0]
    n, broken = len(above), int((~(np.isfinite(above) & np.isfinite(below))).sum())
    if n < FEWEST:
        number = "1 example is" if n == 1 else f"{n} examples are"
        reason = f"{number} too few: an interval over examples needs {FEWEST}, so give more"
    elif broken:
        reason = f"{broken} of {n} examples are not finite"
    elif bool(_alike(above, below)):
        reason = f"all {n} examples have the same value, which says nothing of others: give more"
    else:
        (low,), (high,) = ratio_ends(above[None], below[None], resamples=resamples, seed=seed)
        if math.isfinite(low) and math.isfinite(high):
            return MeanInterval(float(low), float(high))
        reason = f"{n} examples are too few for how unequal they are: give more"
    return MeanInterval(math.nan, math.nan, reason)


def ratio_ends(above: Floats, below: Floats, *, resamples: int = 1000, seed: int = 0) -> tuple[Floats, Floats]:
    """The ends of `ratio_interval` for each row of `[K, n]`; infinite or NaN where the examples do not give any.

    Studentised bootstrap (Hall 1988): R − t·e, with e the standard error of the ratio R, and t the quantiles of
    (R* − R)/e* over draws of examples. KL and losses are skewed: a sample without the rare large values has too low a
    mean and too low a spread, and the percentiles of the drawn means are too low with both. t makes up for that, not
    wholly for few examples: of populations with a skewness of 5 it still covers 86 % (8 examples) to 94 % (256). So its
    quantiles are those of α/2 and 1 − α/2 with α = 5 % · n/(n + 64): 0.6 % for 8 examples, 1.7 % for 32, 4 % for 256.
    Where draws without any spread are more frequent than that (few examples differ from 0), there is no end. The ratio
    of what is never negative is not either.

    Tried on populations that this was not chosen on, in tests/test_mean_intervals.py: it covers 93 to 99 %. What is too
    rare to be in the sample at all is in no interval: 1 example in 100 that does most of the damage needs some 300.
    """
    n = above.shape[1]
    total = below.sum(1, keepdims=True)
    ratio = above.sum(1, keepdims=True) / total
    rest = above - ratio * below
    error = np.sqrt(n / (n - 1) * np.square(rest).sum(1)) / total[:, 0]
    generator = np.random.default_rng(seed)
    rows, parts = max(1, DRAWN // n), []
    for start in range(0, resamples, rows):
        times = _times_drawn(generator, min(rows, resamples - start), n)
        parts.append(_studentised(rest, below, times.T))
    scores = np.concatenate(parts, 1)
    tail = 0.025 * n / (n + _WIDENED)
    # not interpolated, as one of two values may be infinite: the outer one
    upper = np.quantile(scores, 1 - tail, axis=1, method="higher")
    lower = np.quantile(scores, tail, axis=1, method="lower")
    with np.errstate(invalid="ignore"):
        error = np.where(_alike(above, below), math.nan, error)
        low, high = ratio[:, 0] - upper * error, ratio[:, 0] - lower * error
    return np.where((above >= 0).all(1), np.maximum(low, 0.0), low), high


def _alike(above: Floats, below: Floats) -> NDArray[np.bool_]:
    each = above / below
    alike: NDArray[np.bool_] = np.ptp(each, -1) <= _ALIKE * abs(each).max(-1)
    return alike


def _times_drawn(generator: np.random.Generator, draws: int, n: int) -> Floats:
    """How often each of n examples is in each draw of n examples, `[draws, n]`."""
    drawn = generator.integers(n, size=(draws, n)) + n * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)


def _studentised(rest: Floats, below: Floats, times: Floats) -> Floats:
    """(R* − R)/(standard error of R*) of every draw, `[K, draws]`, from what is left of the numerators, a − R·b."""
    n = rest.shape[1]
    total = below @ times
    moved = (rest @ times) / total
    squares = np.square(rest) @ times
    spread = squares - 2 * moved * ((rest * below) @ times) + moved**2 * (np.square(below) @ times)
    spread = np.where(spread > _SAME * squares, spread, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(moved == 0, 0.0, moved * total / np.sqrt(n / (n - 1) * spread))


def share_interval(part: ArrayLike, whole: ArrayLike, *, resamples: int = 1000, seed: int = 0) -> MeanInterval:
    """Of the share Σ part/Σ whole, both with one count per example, which is the unit that was drawn.

    Wilson's over examples where each counts once; otherwise `ratio_interval`, cut at 0 and 1. Where the share is 0 or
    1, or too few examples differ, drawing examples again says nothing: then Wilson's with the number of positions that
    count as independent (`independent_positions`).
    """
    parts, counts = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    examples = int((counts > 0).sum())
    if not examples:
        return MeanInterval(math.nan, math.nan, "no example has a position that counts: give others")
    share = float(parts.sum() / counts.sum())
    if share in (0.0, 1.0) or counts.max() == 1:
        return MeanInterval(*wilson(share, independent_positions(parts, counts)))
    low, high, reason = ratio_interval(parts, counts, resamples=resamples, seed=seed)
    if reason is not None and examples >= FEWEST and math.isfinite(share):
        low, high, reason = *wilson(share, independent_positions(parts, counts)), None
    return MeanInterval(max(low, 0.0), min(high, 1.0)) if reason is None else MeanInterval(low, high, reason)


def share_difference_interval(first: ArrayLike, second: ArrayLike, whole: ArrayLike) -> MeanInterval:
    """Of the difference between two shares of the same examples, paired by example.

    Where too few examples differ for `ratio_interval`, the narrower of two that `difference_of_estimates` makes: of the
    shares' own intervals, and of those of what was gained and what was lost, in net positions of an example.
    """
    one, other, counts = (np.asarray(each, dtype=np.float64) for each in (first, second, whole))
    low, high, reason = ratio_interval(one - other, counts)
    if reason is None:
        return MeanInterval(max(low, -1.0), min(high, 1.0))
    found, pairs = [], [(one, other)]
    if int((counts > 0).sum()) >= FEWEST or counts.max() == 1:
        pairs.append((np.maximum(one - other, 0.0), np.maximum(other - one, 0.0)))
    for pair in pairs:
        own = [share_interval(each, counts) for each in pair]
        if all(each.reason is None for each in own):
            p, q = ((float(n.sum() / counts.sum()), i.low, i.high) for n, i in zip(pair, own, strict=True))
            found.append(difference_of_estimates(p, q))
    if not found:
        return MeanInterval(low, high, reason)
    low, high = min(found, key=lambda ends: ends[1] - ends[0])
    return MeanInterval(max(low, -1.0), min(high, 1.0))


def independent_positions(part: ArrayLike, whole: ArrayLike) -> float:
    """How many independent positions say as much of a share as these, of which an example has several: Σ n/d.

    d is the design effect (Kish 1965), the variance of the share over that of independent positions: the larger of the
    linearised variance over examples, where the share is not 0 or 1, and 1 + (Σ n²/Σ n − 1)·ρ with ρ = 0.1, since few
    examples that differ show too little of how alike the positions of one text are. Examples of one position each
    have d = 1.

    >>> round(independent_positions([0] * 8, [127] * 8), 1), independent_positions([1, 0, 1], [1, 1, 1])
    (74.7, 3.0)
    """
    parts, counts = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    parts, counts = parts[counts > 0], counts[counts > 0]
    total, n = float(counts.sum()), len(counts)
    if counts.max() == 1:
        return float(n)
    share = float(parts.sum()) / total
    effect = 1 + (float(np.square(counts).sum()) / total - 1) * _WITHIN
    if 0 < share < 1 and n > 1:
        over_examples = n / (n - 1) * float(np.square(parts - share * counts).sum()) / total
        effect = max(effect, over_examples / (share * (1 - share)))
    return total / effect


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
