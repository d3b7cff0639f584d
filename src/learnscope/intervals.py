"""95 % confidence intervals of shares and of their differences; standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

Z = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""

Interval = tuple[float, float]


def wilson(share: float, n: int) -> Interval:
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
    _, interval = within_difference([(first, second)])
    return interval


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
        (p_low, p_high), (q_low, q_high) = wilson(p, n), wilson(q, m)
        value += share * (p - q)
        below += share**2 * ((p - p_low) ** 2 + (q_high - q) ** 2)
        above += share**2 * ((p_high - p) ** 2 + (q - q_low) ** 2)
    return value, (value - sqrt(below), value + sqrt(above))
