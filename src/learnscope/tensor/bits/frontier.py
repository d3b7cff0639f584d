"""Sizes and damages of configurations: what nothing else beats, and damages between the widths that were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from learnscope.tensor.bits.allocation import Point, pareto

PER_BIT = 4.0
"""A step of rounding that is half as large does a quarter of the damage, where the damage is small."""
LEAST = 1e-15


def undominated(points: Iterable[Point]) -> list[str]:
    """The points for which no other has as few bytes and as little damage, and less of one; from small to large.

    Of equal points, the first by name stands for all.

    >>> undominated([Point("a", 10, 0.5), Point("b", 20, 0.6), Point("c", 20, 0.1), Point("d", 30, 0.1)])
    ['a', 'c']
    """
    return [point.name for point in pareto(points)]


def dominates(one: Point, other: Point) -> bool:
    """Whether `one` is as small and as good as `other`, and better in one of the two.

    >>> dominates(Point("a", 10, 0.5), Point("b", 10, 0.6)), dominates(Point("a", 10, 0.5), Point("b", 10, 0.5))
    (True, False)
    """
    no_worse = one.bytes <= other.bytes and one.damage <= other.damage
    return no_worse and (one.bytes, one.damage) != (other.bytes, other.damage)


def at_widths(measured: Mapping[int, float], widths: Iterable[int]) -> dict[int, float]:
    """Damages at these widths: as measured, on a line of their logarithms between two that were, and a quarter for
    each bit above the widest. Widths below the narrowest have none, and what is not finite stays so.

    >>> at_widths({4: 0.16, 2: 0.64}, [5, 4, 3, 2])
    {5: 0.04, 4: 0.16, 3: 0.32, 2: 0.64}
    """
    known = sorted(measured)
    return {width: _at(measured, known, width) for width in widths if known and width >= known[0]}


def _at(measured: Mapping[int, float], known: list[int], width: int) -> float:
    if width in measured:
        return measured[width]
    below = max(bits for bits in known if bits < width)
    above = min((bits for bits in known if bits > width), default=None)
    if above is None:
        return measured[below] * PER_BIT ** (below - width)
    low, high = (max(measured[bits], LEAST) for bits in (below, above))
    share = (width - below) / (above - below)
    logarithm = (1 - share) * math.log(low) + share * math.log(high)
    return float(f"{math.exp(logarithm):.15g}") if math.isfinite(logarithm) else math.nan


def crossing(damages: Iterable[tuple[float, bool]]) -> float | None:
    """Up to which damage configurations stay within a loss: between the last that does and the first that does not.

    `damages` are pairs of a damage and whether it stays within. None if none does.

    >>> crossing([(0.01, True), (0.04, False), (0.2, False)]), crossing([(0.5, True)]), crossing([(0.5, False)])
    (0.02, 0.5, None)
    """
    ordered = sorted(pair for pair in damages if math.isfinite(pair[0]))
    first_out = min((damage for damage, within in ordered if not within), default=math.inf)
    inside = max((damage for damage, within in ordered if within and damage < first_out and damage > 0), default=None)
    if inside is None or not math.isfinite(first_out):
        return inside
    return math.sqrt(inside * first_out)
