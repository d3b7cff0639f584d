"""Choosing a bit width for every unit: the least damage within a size, or the smallest size within a damage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_TOP = 1e6
"""Damages are scaled to this: the solver's tolerances are absolute, 1e-6, so that the relative error is 1e-12."""
_TIE = 1e-12
_CUTS = 1000
"""Attempts to find a choice that keeps the budget exactly, not only within the solver's tolerance."""


class NoAllocation(ValueError):
    """No choice keeps the budget; the message states the smallest possible one."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The width chosen for each unit, total damage and bytes, and the solver's status."""

    choice: dict[str, int]
    damage: float
    bytes: int
    status: str


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration: its size and its distance from the original."""

    name: str
    bytes: int
    damage: float


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A configuration on the frontier, and the larger ones that are not measurably better than it."""

    name: str
    merged: tuple[str, ...]


class _Option(NamedTuple):
    unit: str
    width: int
    damage: float
    bytes: int
    excess: float
    """Damage above the least of the unit."""


def pareto(
    points: Iterable[Point], paired: Callable[[str, str], tuple[float, float]] | None = None
) -> list[FrontierPoint]:
    """The Pareto frontier: configurations that no smaller one matches, from the smallest to the largest.

    Sorted by bytes, a point is kept if its damage is strictly below that of the last kept one. `paired(a, b)` is the
    95 % interval of the damage of a minus that of b over the same examples: unless it lies above 0, b is not
    measurably better than the smaller a, and is merged with it; NaN does not merge. The comparison is always with the
    kept point, so that a chain of small steps is not merged into one. A point without a damage (NaN) is left out.

    >>> [p.name for p in pareto([Point("a", 10, 0.5), Point("b", 20, 0.6), Point("c", 20, 0.1)])]
    ['a', 'c']
    """
    frontier: list[tuple[Point, list[str]]] = []
    measured = [point for point in points if not math.isnan(point.damage)]
    for point in sorted(measured, key=lambda p: (p.bytes, p.damage, p.name)):
        last, merged = frontier[-1] if frontier else (None, [])
        if last is None:
            frontier.append((point, []))
        elif point.damage < last.damage:
            if paired is not None and paired(last.name, point.name)[0] <= 0:  # false for NaN
                merged.append(point.name)
            else:
                frontier.append((point, []))
    return [FrontierPoint(point.name, tuple(merged)) for point, merged in frontier]


def allocate(
    damage: Mapping[str, Mapping[int, float]],
    size: Mapping[str, Mapping[int, int]],
    *,
    max_bytes: int | None = None,
    max_damage: float | None = None,
) -> Allocation:
    """One width for each unit, where damages and sizes add up (a multiple-choice knapsack, solved by HiGHS).

    `max_bytes` minimises the sum of damages, `max_damage` the sum of bytes; ties are broken by the other one.
    The budget is kept exactly: the solver's choice is added up again, and ruled out if it exceeds the budget. A width
    whose damage is not finite is not chosen. Damages are accurate to 1e-12 of their sum.

    >>> damage = {"a": {8: 0.0, 4: 0.1}, "b": {8: 0.0, 4: 0.3}}
    >>> allocate(damage, {"a": {8: 8, 4: 4}, "b": {8: 8, 4: 4}}, max_bytes=12).choice
    {'a': 4, 'b': 8}
    """
    if (max_bytes is None) == (max_damage is None):
        raise TypeError("give one of max_bytes= and max_damage=: the other one is minimised")
    options = _options(damage, size)
    least_bytes = sum(group[0].bytes for group in options)
    least_damage = math.fsum(group[-1].damage for group in options)
    if max_bytes is not None:
        if not least_bytes <= max_bytes:
            raise NoAllocation(f"max_bytes={max_bytes}: every unit at its smallest takes {least_bytes} bytes")
        best = _least_damage(options, max_bytes)
        total = _damage(best)
        best = _least_bytes(options, total + _TIE * abs(total), best)
    else:
        assert max_damage is not None
        if not least_damage <= max_damage:
            raise NoAllocation(f"max_damage={max_damage:g}: every unit at its best has {least_damage:g} together")
        # a budget above the sum of all damages allows no more than that sum, and may be infinite
        max_damage = min(max_damage, math.fsum(group[0].damage for group in options))
        best = _least_bytes(options, max_damage, [group[-1] for group in options])
        best = _least_damage(options, _bytes(best))
    return Allocation({o.unit: o.width for o in best}, _damage(best), _bytes(best), "optimal")


def _damage(choice: Iterable[_Option]) -> float:
    return math.fsum(o.damage for o in choice)


def _bytes(choice: Iterable[_Option]) -> int:
    return sum(o.bytes for o in choice)


def _options(damage: Mapping[str, Mapping[int, float]], size: Mapping[str, Mapping[int, int]]) -> list[list[_Option]]:
    """For each unit the widths that no other one matches in both bytes and damage, from small to large."""
    if not damage:
        raise ValueError("there are no units to choose widths for")
    groups = []
    for unit, widths in damage.items():
        missing = [width for width in widths if width not in size.get(unit, {})]
        if missing:
            raise ValueError(f"the size of {unit} at {missing[0]} bits is not given")
        finite = sorted((int(size[unit][w]), float(d), w) for w, d in widths.items() if math.isfinite(d))
        if not finite:
            raise NoAllocation(f"{unit} has no width with a finite damage: leave it as it is")
        least = min(d for _, d, _ in finite)
        group: list[_Option] = []
        for nbytes, d, width in finite:
            if not group or d < group[-1].damage:
                group.append(_Option(unit, width, d, nbytes, d - least))
        groups.append(group)
    return groups


def _least_damage(options: Sequence[Sequence[_Option]], max_bytes: int) -> list[_Option]:
    """The smallest sum of damages within the bytes, improving on what a greedy search gives."""
    best = _greedy(options, max_bytes)
    while True:
        excess = math.fsum(o.excess for o in best)
        if excess == 0:
            return best
        # a width that alone does more damage than a whole choice is not part of a better one, and its damage would
        # only make the others small compared with the solver's tolerance
        left = [[o for o in group if o.excess <= excess * (1 + 1e-9)] for group in options]
        scale = _TOP / excess
        better = _solve(
            left,
            cost=[o.excess * scale for group in left for o in group],
            weight=[float(o.bytes) for group in left for o in group],
            limit=float(max_bytes),
            fits=lambda choice: _bytes(choice) <= max_bytes,
        )
        now = math.fsum(o.excess for o in better)
        if now >= excess:
            return best
        best = better
        if now > 0.1 * excess:  # otherwise solve again, with damages scaled to what is left
            return best


def _least_bytes(options: Sequence[Sequence[_Option]], max_damage: float, start: list[_Option]) -> list[_Option]:
    """The fewest bytes within the damage; `start` is a choice that keeps it."""
    least = [group[-1].damage for group in options]
    # slightly more than allowed, for the rounding of differences: what exceeds the budget is ruled out exactly
    room = max_damage - math.fsum(least) + 1e-14 * max(abs(max_damage), *map(abs, least))
    left = [[o for o in group if o.excess <= room or o in start] for group in options]
    if sum(group[0].bytes for group in left) == _bytes(start):
        return start
    scale = _TOP / room if room > 0 else 1.0
    step = math.gcd(*(o.bytes - group[0].bytes for group in left for o in group)) or 1
    best = _solve(
        left,
        cost=[o.bytes / step for group in left for o in group],
        weight=[o.excess * scale for group in left for o in group],
        limit=room * scale,
        fits=lambda choice: _damage(choice) <= max_damage,
    )
    return best if _bytes(best) < _bytes(start) else start


def _greedy(options: Sequence[Sequence[_Option]], max_bytes: int) -> list[_Option]:
    """A choice that fits: starting from the smallest, take the step that saves most damage per byte."""
    at = [0] * len(options)
    room = max_bytes - sum(group[0].bytes for group in options)
    while True:
        steps = [
            ((group[i].damage - group[j].damage) / (group[j].bytes - group[i].bytes), u, j)
            for u, group in enumerate(options)
            for i in [at[u]]
            for j in range(i + 1, len(group))
            if group[j].bytes - group[i].bytes <= room
        ]
        if not steps:
            return [group[i] for group, i in zip(options, at, strict=True)]
        _, unit, to = max(steps, key=lambda step: (step[0], -step[1], -step[2]))
        room -= options[unit][to].bytes - options[unit][at[unit]].bytes
        at[unit] = to


def _solve(
    options: Sequence[Sequence[_Option]],
    *,
    cost: Sequence[float],
    weight: Sequence[float],
    limit: float,
    fits: Callable[[Sequence[_Option]], bool],
) -> list[_Option]:
    """The option of each group that together cost least, with weights within the limit and `fits`, an exact check."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    flat = [option for group in options for option in group]
    columns = np.arange(len(flat))
    rows = np.repeat(np.arange(len(options)), [len(group) for group in options])
    one_each = csr_array((np.ones(len(flat)), (rows, columns)), shape=(len(options), len(flat)))
    constraints: list[Any] = [LinearConstraint(one_each, 1, 1), LinearConstraint(np.array([weight]), -np.inf, limit)]
    for _ in range(_CUTS):
        result = milp(
            np.array(cost), integrality=np.ones(len(flat)), bounds=Bounds(0, 1),
            constraints=constraints, options={"mip_rel_gap": 0.0},
        )  # fmt: skip
        if result.x is None:
            raise RuntimeError(f"the solver found no allocation though there is one: {result.message}")
        chosen = [
            flat[group[np.argmax(result.x[group])]] for group in np.split(columns, np.flatnonzero(np.diff(rows)) + 1)
        ]
        if fits(chosen):
            return chosen
        used = np.isin(columns, [flat.index(o) for o in chosen]).astype(np.float64)
        constraints.append(LinearConstraint(used[None], -np.inf, len(options) - 1))
    raise RuntimeError(f"{_CUTS} choices kept the budget only within the solver's tolerance: widen the budget a little")
