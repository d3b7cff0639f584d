"""Populations that intervals are tried on, each with its true mean.

An interval was chosen on `CHOSEN_ON` and is judged on `JUDGED_ON`, which no choice looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Random = np.random.Generator
Shape = tuple[int, int]


class Population(NamedTuple):
    """Draws numerators and denominators of examples; `mean` is Σ/Σ over the whole population."""

    draw: Callable[[Random, Shape], tuple[Floats, Floats]]
    mean: float


def of(values: Callable[[Random, Shape], Floats], mean: float) -> Population:
    """Examples with one position each."""
    return Population(lambda random, shape: (values(random, shape), np.ones(shape)), mean)


def mixed_with_zeros(share: float, values: Callable[[Random, Shape], Floats], mean: float) -> Population:
    return of(lambda random, shape: (random.random(shape) < share) * values(random, shape), share * mean)


LARGE = 20.0


def rare_and_large(random: Random, shape: Shape) -> Floats:
    """0 for 85 %, 1 on average for 14 %, and for 1 % `LARGE`, which is more than half of the mean."""
    kind = random.random(shape)
    return np.where(kind < 0.85, 0.0, np.where(kind < 0.99, random.exponential(1, shape), LARGE))


def kept(numerator: str, denominator: str | None = None) -> Population:
    """Of a real model in 4 bits: see make_quantised_model.py."""
    with np.load(Path(__file__).with_name("quantised_model.npz")) as file:
        above = file[numerator].astype(np.float64)
        below = np.ones_like(above) if denominator is None else file[denominator].astype(np.float64)

    def draw(random: Random, shape: Shape) -> tuple[Floats, Floats]:
        chosen = random.integers(len(above), size=shape)
        return above[chosen], below[chosen]

    return Population(draw, float(above.sum() / below.sum()))


CHOSEN_ON = {
    "weibull 0.4": of(lambda r, shape: r.weibull(0.4, shape), float(stats.weibull_min(0.4).mean())),
    "weibull 0.5": of(lambda r, shape: r.weibull(0.5, shape), 2.0),
    "weibull 0.8": of(lambda r, shape: r.weibull(0.8, shape), float(stats.weibull_min(0.8).mean())),
    "inverse gaussian": of(lambda r, shape: r.wald(1, 1 / 3, shape), 1.0),
    "lomax 2.5": of(lambda r, shape: r.pareto(2.5, shape), 1 / 1.5),
    "lomax 3.5": of(lambda r, shape: r.pareto(3.5, shape), 1 / 2.5),
    "70 % zeros": mixed_with_zeros(0.3, lambda r, shape: r.weibull(0.7, shape), float(stats.weibull_min(0.7).mean())),
    "90 % zeros": mixed_with_zeros(0.1, lambda r, shape: r.weibull(0.7, shape), float(stats.weibull_min(0.7).mean())),
    "student's t 5": of(lambda r, shape: r.standard_t(5, shape) + 0.5, 0.5),
    "difference of exponentials": of(lambda r, shape: r.exponential(2, shape) - r.exponential(1, shape), 1.0),
}
JUDGED_ON = {
    "log-normal 0.5": of(lambda r, shape: r.lognormal(0, 0.5, shape), float(np.exp(0.5**2 / 2))),
    "log-normal 1": of(lambda r, shape: r.lognormal(0, 1, shape), float(np.exp(1 / 2))),
    "log-normal 1.5": of(lambda r, shape: r.lognormal(0, 1.5, shape), float(np.exp(1.5**2 / 2))),
    "gamma 0.5": of(lambda r, shape: r.gamma(0.5, 1, shape), 0.5),
    "exponential": of(lambda r, shape: r.exponential(1, shape), 1.0),
    "90 % zeros": mixed_with_zeros(0.1, lambda r, shape: r.lognormal(0, 1.5, shape), float(np.exp(1.5**2 / 2))),
    "KL of tokens": kept("token_kl"),
    "KL of passages": kept("passage_kl", "passage_tokens"),
    "change of the loss": kept("passage_change", "passage_tokens"),
    "normal": of(lambda r, shape: r.normal(0.3, 1, shape), 0.3),
    "laplace": of(lambda r, shape: r.laplace(0.1, 1, shape), 0.1),
}
ONE_IN_A_HUNDRED = of(rare_and_large, 0.14 + 0.01 * LARGE)
"""Judged on too: a sample that has none of the large values cannot know of them."""
