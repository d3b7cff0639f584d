"""When each of several series had made half of its way, and whether that tells which was first."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from learnscope.reading.changepoints import first_lasting
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats
from learnscope.reading.words import count, listed

HALF = 0.5 * (1 - 1e-9)
"""What is half but for the last digits counts as half."""
ERROR = 0.05
"""Probability, over all scopes, of calling one of them certainly past half of its way, or before it, by chance."""


@dataclass(frozen=True)
class Order:
    """When each scope had made half of its way, as places among the measured steps."""

    steps: NDArray[np.int64]
    places: dict[str, int] = field(default_factory=dict)
    margins: dict[str, Floats] = field(default_factory=dict)
    """How far past half of its way (below 0: before it) a scope is at every step, in standard errors."""
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, scope: str, place: int, margins: Floats) -> None:
        self.places[scope], self.margins[scope] = place, margins

    @property
    def ranks(self) -> list[tuple[int, list[str]]]:
        """The steps in order, each with the scopes that tie there."""
        ties = groupby(sorted(self.places, key=self.places.__getitem__), key=self.places.__getitem__)
        return [(int(self.steps[place]), list(scopes)) for place, scopes in ties]

    def tells(self, cuts: Cuts) -> bool:
        """Whether first and last are further apart than chance and the interval of measurements explain: at some
        measurement, one of the first was certainly past half of its way and one of the last was not."""
        if len(self.places) < 2 or len(self.steps) < cuts.order_measurements:
            return False
        first, last = min(self.places.values()), max(self.places.values())
        apart = (self.steps[last] - self.steps[first]) / (self.steps[-1] - self.steps[0])
        if last - first <= 1 or not apart >= cuts.order_spread:
            return False
        certain = NormalDist().inv_cdf(1 - ERROR / len(self.places))
        past = np.array([self.margins[scope] > certain for scope, place in self.places.items() if place == first])
        before = np.array([self.margins[scope] < -certain for scope, place in self.places.items() if place == last])
        return bool((past.any(0) & before.any(0)).any())

    def sentence(self, word: str, limit: int) -> str:
        """Scopes (what they are: `word`) with their steps; of too many, some in the middle are left out."""
        ranks = self.ranks
        shown = ranks if len(ranks) <= limit else [*ranks[: limit - 1], ranks[-1]]
        parts = []
        for step, scopes in shown:
            when = f"at step {step:,}{' or before' if step == self.steps[0] else ''}"
            tie = " (a tie)" if len(scopes) > 1 else ""
            parts.append(f"{plural(word, len(scopes))} {listed(scopes, limit)} {when}{tie}")
        if len(shown) < len(ranks):
            parts.insert(-1, f"{count(sum(len(scopes) for _, scopes in ranks[limit - 1 : -1]), 'other')} between")
        return ", ".join(parts)


def plural(word: str, n: int) -> str:
    """
    >>> plural("class", 1), plural("class", 2), plural("layer", 2)
    ('class', 'classes', 'layers')
    """
    return word if n == 1 else f"{word}{'es' if word.endswith('s') else 's'}"


def noise(values: Floats) -> float:
    """The standard deviation of what is not smooth in a series, from its median absolute second difference; 0 for
    fewer than three values.

    >>> noise(np.array([0.0, 1.0, 2.0, 3.0, 9.0, 10.0, 11.0, 12.0]))
    0.0
    """
    bends = np.diff(values, 2)
    return float(np.median(np.abs(bends))) / (0.6744897501960817 * 6**0.5) if len(bends) else 0.0


def margin(values: Floats, half: float, errors: Floats | float) -> Floats:
    """How far a series is past `half`, in standard errors; of none, infinitely far."""
    way = values - half
    errors = np.broadcast_to(np.asarray(errors, dtype=np.float64), way.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(way == 0, 0.0, way / errors))


def half_way(values: Floats, start: float, lasting: int) -> int | None:
    """The first place from which a series is past half of its way from `start` to its final level, for `lasting` in a
    row; the final level is the mean of the last `lasting`. None if it goes nowhere, or never for so long.

    >>> half_way(np.array([0.1, 0.2, 0.8, 0.3, 0.6, 0.9, 0.9, 0.9]), 0.1, 3)
    4
    """
    if not len(values):
        return None
    way = float(values[-lasting:].mean()) - start
    return first_lasting((values - start) * np.sign(way) >= abs(way) * HALF, lasting) if way else None
