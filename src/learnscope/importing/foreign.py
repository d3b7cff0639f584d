"""What a reader of a foreign format hands over: named curves over steps, and what else the source says."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.store.errors import RunError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

ORDER = "order"
"""As the name of the step: values are numbered from 1 in the order in which they were written."""
MOST_RESTARTS = 20
"""Times that steps may fall, each a training that went on from an earlier step; more are no restarts."""
LARGEST_STEP = 2**53
"""Above it float64, which tables and pages are read with, does not hold every whole number."""
SAME_AXIS = 0.5
"""Share of the largest step from which on a curve is taken to count what the others count."""


@dataclass(frozen=True)
class Curve:
    """One foreign name: what was measured, in the order of writing. A value that is NaN was measured as NaN."""

    steps: Ints
    values: Floats
    times: Floats
    """Seconds since 1970; NaN where the source does not say."""
    attempts: Ints

    def __len__(self) -> int:
        return len(self.steps)

    def only(self, chosen: NDArray[Any]) -> Curve:
        return Curve(self.steps[chosen], self.values[chosen], self.times[chosen], self.attempts[chosen])


@dataclass(kw_only=True)
class Foreign:
    """One training as another tool recorded it."""

    format: str
    name: str
    """What the run is called if nobody names it."""
    files: Sequence[Path]
    curves: Mapping[str, Curve]
    starts: Sequence[int] = (0,)
    """The step after which each attempt begins."""
    step: str = "step"
    """Where the steps come from."""
    read_with: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    """Other facts that the source states: names, ids, its own best step."""
    started: float | None = None
    ended: float | None = None
    status: str | None = None
    """How the training ended; None where the source does not say."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What is no number over steps, and what it is instead."""
    summaries: Mapping[str, str] = field(default_factory=dict)
    """Names that the tool gives to numbers over a whole training, whatever they look like, with what they are."""
    problems: Sequence[str] = ()
    """What could not be read."""
    notes: Sequence[str] = ()
    """What a reader of the numbers should know."""


def as_float(value: float) -> float:
    """A number as float64 holds it: a whole number beyond its range is infinite there.

    >>> as_float(7), as_float(-(10**400))
    (7.0, -inf)
    """
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@dataclass
class _Points:
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times: array[float] = field(default_factory=lambda: array("d"))
    attempts: array[int] = field(default_factory=lambda: array("q"))


class Gathered:
    """Collects values one by one, and notices where a training went on from an earlier step.

    >>> gathered = Gathered()
    >>> for step in (1, 2, 3, 2, 3, 4):
    ...     gathered.add("loss", step, 1.0)
    >>> curves, starts = gathered.finished()
    >>> starts, curves["loss"].attempts.tolist()
    ([0, 1], [0, 0, 0, 1, 1, 1])
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self.in_order = in_order
        self.replaced: Counter[str] = Counter()
        """Values of a step that was written again in the same attempt, as another: the last one counts."""
        self._points: dict[str, _Points] = {}
        self._last: dict[str, int] = {}
        self._restarts: list[_Restart] = []

    def add(self, name: str, step: int, value: float, time: float = math.nan) -> None:
        if abs(step) > LARGEST_STEP:
            raise RunError(f"{name} has a value at step {step:.3e}, and steps are whole numbers up to 2^53")
        points = self._points.get(name)
        if points is None:
            points = self._points[name] = _Points()
        if self.in_order:
            step = len(points.steps) + 1
        last = self._last.get(name)
        if last is not None and step < last:
            self.restart()
            if len(self._restarts) > MOST_RESTARTS:
                raise RunError(
                    f"the steps of {name} fall more than {MOST_RESTARTS} times, as if they were counted within epochs: "
                    f"name another step, or take step={ORDER!r} to number the values in the order of writing"
                )
        self._last[name] = step
        if self._restarts:
            self._restarts[-1].first.setdefault(name, step)
        points.steps.append(step)
        points.values.append(value)
        points.times.append(time)
        points.attempts.append(len(self._restarts))

    def restart(self, start: int | None = None) -> None:
        """From here on it is another attempt; `start` is the last step that it leaves as it was, if the source says."""
        self._restarts.append(_Restart(self._last, start))
        self._last = {}

    def finished(self) -> tuple[dict[str, Curve], list[int]]:
        """The curves, and the step after which each attempt begins."""
        starts = [0, *(restart.begins() for restart in self._restarts)]
        curves = {}
        for name, points in self._points.items():
            curve = Curve(
                np.array(points.steps, np.int64), np.array(points.values, np.float64),
                np.array(points.times, np.float64), np.array(points.attempts, np.int64),
            )  # fmt: skip
            curves[name] = curve.only(kept := last_of_each(curve, starts))
            self.replaced[name] += differing(curve, kept)
        self.replaced = +self.replaced
        return curves, starts


@dataclass
class _Restart:
    """Where a training went on again: the last step of each curve before, and the first one after."""

    before: dict[str, int]
    said: int | None
    first: dict[str, int] = field(default_factory=dict)

    def begins(self) -> int:
        """The step after which it begins, by the curves that fell and count what most count: steps, not epochs."""
        if self.said is not None:
            return self.said
        fell = {name: step for name, step in self.first.items() if step <= self.before.get(name, step - 1)}
        if not fell:  # nothing was written again
            return max(self.before.values(), default=0)
        reached = SAME_AXIS * max(self.before[name] for name in fell)
        return min(step for name, step in fell.items() if self.before[name] >= reached) - 1


def last_of_each(curve: Curve, starts: Sequence[int]) -> NDArray[np.bool_]:
    """Which values are the last of their step among those that no later attempt supersedes; superseded ones stay."""
    kept = np.ones(len(curve), dtype=np.bool_)
    counted = np.ones(len(curve), dtype=np.bool_)
    for attempt, start in enumerate(starts[1:], 1):
        counted &= (curve.attempts >= attempt) | (curve.steps <= start)
    for of_these in (counted, ~counted):
        places = np.flatnonzero(of_these)
        backwards = places[::-1]
        key = (
            curve.steps[backwards] if of_these is counted else _pairs(curve.attempts[backwards], curve.steps[backwards])
        )
        _, last = np.unique(key, return_index=True)
        kept[places] = False
        kept[backwards[last]] = True
    return kept


def differing(curve: Curve, kept: NDArray[np.bool_]) -> int:
    """How many of the values that are not kept are others than the one that is kept for their step."""
    last, dropped = curve.only(kept), curve.only(~kept)
    order = np.argsort(last.steps, kind="stable")
    ours = last.values[order][np.searchsorted(last.steps[order], dropped.steps)] if len(dropped) else dropped.values
    same = (ours == dropped.values) | (np.isnan(ours) & np.isnan(dropped.values))
    return int((~same).sum())


def _pairs(attempts: Ints, steps: Ints) -> NDArray[Any]:
    pairs = np.empty(len(steps), dtype=[("attempt", np.int64), ("step", np.int64)])
    pairs["attempt"], pairs["step"] = attempts, steps
    return pairs
