"""Where a series jumps out of its own smooth trend, and whether it does at all.

A learning curve moves all the time: that its level changes says nothing. A jump is what a smooth curve cannot follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learnscope.reading.course.noise_around import autocorrelation, local_spread, noise_like
from learnscope.reading.gather import Floats
from learnscope.reading.words import count

SIMULATIONS = 999
ALPHA = 0.01
MIN_SIZE = 3
"""Values that lie on each side of a jump at least."""
DEGREES = 12
"""Highest degree of a trend."""
VALUES_PER_DEGREE = 4
"""A trend has at most one degree for so many values: with more it would follow a jump as well."""
RESOLUTION = 1e-3
"""Share of the range of a series that counts as no difference at all."""
NEIGHBOURS = 5
"""Values on each side with which a jump is compared: it is steeper than both."""
STEEPER = 1 / 3
"""Share of the way across a jump that the slopes on its two sides must leave unexplained."""
LARGER = 3.0
"""Standard deviations of the noise that a jump is at least."""
AT_MOST = 20
"""Jumps that are looked for."""
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Jumps:
    """The places at which a series jumps, with the evidence that it does at all."""

    places: list[int]
    """Positions of the first value after each jump, in order."""
    p_value: float
    """Of the clearest jump: the share of smooth curves with the same noise in which one is found that is as clear; 1
    if what is clearest is no larger than the noise, or as steep before or after."""
    n: int
    simulations: int
    degree: int
    """Of the polynomial that the trend is."""
    axis: str
    """`time` or `log time`, in which the trend is a polynomial."""


def fewest_values(min_size: int = MIN_SIZE) -> int:
    """Values from which on a jump can be told from a trend: as many on each side as a straight line has to spare."""
    return max(8, 2 * min_size)


def jumps(
    values: ArrayLike, steps: ArrayLike | None = None, *, alpha: float = ALPHA, simulations: int = SIMULATIONS,
    min_size: int = MIN_SIZE, seed: int = 0,
) -> Jumps:  # fmt: skip
    """Jumps of a finite series, measured at `steps` (by default evenly spaced).

    Two descriptions of the series are compared by their BIC, n·ln(RSS/n) + parameters·ln n: a smooth trend, and a trend
    with a step in it. Trends are polynomials in time or in log time, as far as degree 12 (1 for every 4 values), each
    description with the one that suits it best: lines, exponentials, power laws, slow logistic curves and cosines are
    such trends. How much better a step makes the description is compared with `simulations` smooth curves: the best
    trend without a step, and its residuals in random order, with the autocorrelation that they had and as large at
    each place as they were there. The p-value is
    (1 + those as much better)/(1 + simulations); with p > `alpha` there is no jump. A jump must also be larger than
    three standard deviations of the noise, and steeper than the series is on both its sides. Then the next one is
    looked for, with those that were found in the description.

    A change that takes more than a few measurements is a smooth curve: there is no jump in it.
    """
    if simulations < 1 or not 0 < alpha < 1 or min_size < 1:
        raise ValueError("simulations and min_size are from 1, alpha between 0 and 1")
    series, at = _checked(values, steps)
    n = len(series)
    if n < fewest_values(min_size) or np.ptp(series) <= 1e-12 * float(np.abs(series).max()):
        return Jumps([], 1.0, n, simulations, 0, "time")
    series = (series - series.mean()) / np.ptp(series)
    search = _Search(at, min_size)
    generator = np.random.default_rng(seed)
    found: list[int] = []
    first: float | None = None
    while len(found) < AT_MOST and len(search.allowed(found)):
        gain, place = search.best(series, found)
        smooth, rough = search.fit(series, found), search.fit(series, sorted([*found, place]))
        is_jump = gain > 0 and _is_steep(series, at, place, found) and search.stands_out(series, place, found, rough)
        p_value = search.p_value(series, gain, (smooth, rough), found, simulations, generator) if is_jump else 1.0
        first = p_value if first is None else first
        if p_value > alpha:
            break
        found = sorted([*found, place])
    trend = search.fit(series, found)
    return Jumps(found, 1.0 if first is None else first, n, simulations, trend.degree, trend.axis)


def why_none(found: Jumps, values: ArrayLike, alpha: float, min_size: int = MIN_SIZE) -> str:
    """Why a series has no jump."""
    fewest = fewest_values(min_size)
    if found.n < fewest:
        return f"{count(found.n, 'value')}: from {fewest} on, a jump can be told from a smooth course"
    if np.ptp(np.asarray(values)) == 0:
        return "all values are equal"
    return f"p = {found.p_value:.3g}, which is above alpha={alpha:g}: a smooth course with noise is as likely"


def _checked(values: ArrayLike, steps: ArrayLike | None) -> tuple[Floats, Floats]:
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"a series has one dimension, not {series.ndim}")
    if not np.isfinite(series).all():
        raise ValueError("the series has values that are not finite: leave them out, and know which they were")
    at = np.arange(len(series), dtype=np.float64) if steps is None else np.asarray(steps, dtype=np.float64)
    if at.shape != series.shape or not (np.diff(at) > 0).all():
        raise ValueError("steps are as many as the values, each above the one before")
    return series, at


@dataclass(frozen=True)
class _Fit:
    """The best trend with given steps: what it leaves, and what it is."""

    rest: Floats
    degree: int
    axis: str
    parameters: int

    @property
    def spread(self) -> float:
        """Standard deviation of what is left."""
        return math.sqrt(float(self.rest @ self.rest) / max(1, len(self.rest) - self.parameters))


class _Search:
    """The best description of many series at once, with and without one more step."""

    def __init__(self, at: Floats, min_size: int) -> None:
        self.n, self.min_size = len(at), min_size
        since = (at - at[0]) / float(np.median(np.diff(at)))
        self.axes = {"time": since, "log time": np.log1p(since)}
        self.degrees = min(DEGREES, self.n // VALUES_PER_DEGREE)
        self.floor = self.n * RESOLUTION**2
        self._bases: dict[tuple[str, tuple[int, ...]], Floats] = {}

    def best(self, series: Floats, found: Sequence[int]) -> tuple[float, int]:
        """How much one more step improves the BIC, and where it is."""
        gains, places = self._gains(series[None], found)
        return float(gains[0]), int(places[0])

    def fit(self, series: Floats, found: Sequence[int]) -> _Fit:
        """The trend of least BIC with these steps."""
        best, chosen = math.inf, _Fit(series, 0, "time", 0)
        for axis in self.axes:
            rest, basis = series.copy(), self._basis(axis, found)
            for column in range(basis.shape[1]):
                rest = rest - (rest @ basis[:, column]) * basis[:, column]
                if column >= len(found) and (bic := float(self._bic(rest @ rest, column + 1))) < best:
                    best, chosen = bic, _Fit(rest, column - len(found), axis, column + 1)
        return chosen

    def p_value(
        self, series: Floats, gain: float, fits: tuple[_Fit, _Fit], found: Sequence[int], simulations: int,
        generator: np.random.Generator,
    ) -> float:  # fmt: skip
        """Of a gain, among series that are the fit without the step and noise like what is left by it.

        How far the noise remembers is taken from the fit with the step: what is left without it remembers the step.
        """
        smooth, local = fits[0], local_spread(series, fits[1].spread)
        memory = autocorrelation(fits[1].rest / local)
        even = smooth.rest / local
        innovations = even[1:] - memory * even[:-1]
        as_large, width = 0, max(1, _AT_ONCE // self.n)
        for start in range(0, simulations, width):
            noise = noise_like(innovations, memory, (min(width, simulations - start), self.n), generator) * local
            noise *= smooth.spread / max(float(noise.std()), 1e-300)
            as_large += int((self._gains(series - smooth.rest + noise, found)[0] >= gain).sum())
        return (1 + as_large) / (1 + simulations)

    def stands_out(self, series: Floats, place: int, found: Sequence[int], fit: _Fit) -> bool:
        """Whether the step at a place is larger than the noise around the fit that has it, there and on the whole."""
        basis = self._basis(fit.axis, found)[:, : len(found) + fit.degree + 1]
        step = (np.arange(self.n) >= place).astype(np.float64)
        step -= basis @ (basis.T @ step)
        noise = fit.spread * max(1.0, float(local_spread(series, fit.spread)[place - 1 : place + 1].max()))
        return abs(float(step @ series)) >= LARGER * noise * float(step @ step)

    def _gains(self, rows: Floats, found: Sequence[int]) -> tuple[Floats, NDArray[np.int64]]:
        """By row: BIC of the best description without one more step, less that of the best with one; its place."""
        without, within = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
        places = np.zeros(len(rows), dtype=np.int64)
        allowed = self.allowed(found)
        for axis in self.axes:
            basis = self._basis(axis, found)
            steps = np.cumsum(basis[::-1], axis=0)[::-1]  # of each place k, Σ_{i≥k} of every column
            lengths = (self.n - np.arange(self.n)).astype(np.float64)
            rest = rows.copy()
            for column in range(basis.shape[1]):
                rest -= np.outer(rest @ basis[:, column], basis[:, column])
                lengths = lengths - steps[:, column] ** 2
                if column < len(found):  # the steps that were found belong to every description
                    continue
                squares = (rest**2).sum(1)
                without = np.minimum(without, self._bic(squares, column + 1))
                inner = np.cumsum(rest[:, ::-1], axis=1)[:, ::-1][:, allowed]
                reductions = inner**2 / np.maximum(lengths[allowed], 1e-9)
                best = reductions.argmax(1)
                bic = self._bic(squares - reductions[np.arange(len(rows)), best], column + 3)
                places = np.where(bic < within, allowed[best], places)
                within = np.minimum(within, bic)
        return without - within, places

    def _bic(self, squares: Floats, parameters: int) -> Floats:
        bic: Floats = self.n * np.log((np.maximum(squares, 0) + self.floor) / self.n) + parameters * math.log(self.n)
        return bic

    def _basis(self, axis: str, found: Sequence[int]) -> Floats:
        """Orthonormal columns: the steps that were found, then the polynomials of rising degree."""
        key = axis, tuple(found)
        if key not in self._bases:
            at = self.axes[axis]
            unit = 2 * (at - at[0]) / (at[-1] - at[0]) - 1
            steps = [(np.arange(self.n) >= place).astype(np.float64)[:, None] for place in found]
            polynomials = np.polynomial.legendre.legvander(unit, self.degrees)
            self._bases[key] = np.linalg.qr(np.concatenate([*steps, polynomials], 1))[0]
        return self._bases[key]

    def allowed(self, found: Sequence[int]) -> NDArray[np.int64]:
        """Where one more step may be."""
        places = np.arange(self.min_size, self.n - self.min_size + 1)
        for place in found:
            places = places[np.abs(places - place) >= self.min_size]
        return places


def _is_steep(series: Floats, at: Floats, place: int, found: Sequence[int]) -> bool:
    """Whether the series moves further across a place than it would with the slope on either of its sides.

    On a curve that bends, it moves further than with one of them, and less far than with the other.
    """
    first = max([0, *(other for other in found if other <= place)])
    last = min([len(series), *(other for other in found if other > place)])
    sides = slice(max(first, place - NEIGHBOURS), place), slice(place, min(last, place + NEIGHBOURS))
    apart = float(at[sides[1]].mean() - at[sides[0]].mean())
    moved = float(series[sides[1]].mean() - series[sides[0]].mean())
    beyond = [moved - apart * float(np.polyfit(at[side], series[side], 1)[0]) for side in sides]
    return beyond[0] * beyond[1] > 0 and min(map(abs, beyond)) >= STEEPER * abs(moved)
