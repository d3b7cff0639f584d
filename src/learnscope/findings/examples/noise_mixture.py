"""Hard examples and wrong labels as two parts of one histogram of EL2N.

EL2N is ‖p − y‖, p the probabilities that the model gave and y its label as 0 and 1 (arXiv 2107.07075). Its mean over
the presentations of a sound example is low, and of fewer and fewer examples the higher it is. A wrong label has one
around 1.1, where the model was sure of another class until it had memorised the label: a bump on that tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST = 10
"""Examples above where a fit begins, below which there is nothing to fit."""
WIDTH = 0.04
"""Of a bin of EL2N."""
HIGHEST = math.sqrt(2)
"""The largest EL2N that there is."""
SLOPES = np.array([-8.0, -5, -3, -1, 1, 3, 5, 7, 9, 12, 16])
BENDS = np.array([0.0, 2, 5, 9, 14, 20])
"""The number of sound examples falls as exp(−slope·t − bend·t²), t from where the fit begins."""
MEANS = np.arange(0.94, 1.37, 0.04)
SPREADS = np.array([0.05, 0.08, 0.12, 0.16])
"""Of the bump, as of a normal distribution."""
SKEWED = 0.15
"""Share of the bump that is drawn out to the left."""
ROUNDS = 60
"""Of the EM algorithm for the two sizes; it converges by its tenth where the two parts lie apart."""
ENDS = 0.025, 0.975
"""Of the interval."""


@dataclass(frozen=True)
class Mixture:
    """The mean over all bumps and tails by how well they fit, and the interval of the bump's size."""

    number: float
    low: float
    high: float
    gain: float
    """Twice the log-likelihood that the bump adds to the best fit without one."""
    posterior: Floats
    """By bin from `start`: the share of wrong labels."""
    start: float

    def probability(self, el2n: Floats) -> Floats:
        """That the label is wrong, of each example; 0 below the fit, NaN for NaN."""
        place = np.clip(np.nan_to_num((el2n - self.start) / WIDTH), 0, len(self.posterior) - 1).astype(np.int64)
        chance = np.where(el2n < self.start, 0.0, self.posterior[place])
        return np.where(np.isnan(el2n), np.nan, chance)


def fit(el2n: Floats, inflate: float) -> Mixture | None:
    """Fit both parts to the higher half of the values.

    `inflate` is what likelihoods are divided by: real examples are neither independent nor of these exact shapes.
    """
    start = float(np.clip(np.median(el2n), 0.2, 0.6))
    edges = np.arange(start, HIGHEST + WIDTH, WIDTH)
    counts = np.histogram(el2n, edges)[0].astype(np.float64)
    if counts.sum() < FEWEST:
        return None
    sound, bump = _shapes(len(edges) - 1, start)
    likelihood, size, share = _sizes(counts, sound, bump)
    alone = max(_log_likelihood(counts, counts.sum() * shape) for shape in sound)
    weights = np.exp((likelihood - likelihood.max()) / inflate)
    weights /= weights.sum()
    order = np.argsort(size)
    reached = np.cumsum(weights[order])
    low, high = (float(size[order[min(int(np.searchsorted(reached, q)), len(order) - 1)]]) for q in ENDS)
    # once it is a bump, no higher value is less suspicious
    posterior = np.maximum.accumulate(weights @ share)
    gain = 2 * float(likelihood.max() - alone)
    return Mixture(float(weights @ size), low, high, gain, posterior, start)


@cache
def _grid() -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    tails = [(float(slope), float(bend)) for slope in SLOPES for bend in BENDS if slope > 0 or bend > 0]
    return tails, [(float(mean), float(spread)) for mean in MEANS for spread in SPREADS]


def _shapes(bins: int, start: float) -> tuple[Floats, Floats]:
    """Shares of the bins in every tail and in every bump; each adds up to 1."""
    centres: Floats = start + WIDTH * (np.arange(bins, dtype=np.float64) + 0.5)
    tails, bumps = _grid()
    t = centres - start
    sound = np.array([np.exp(-slope * t - bend * t * t) for slope, bend in tails])
    bump = np.array([_bump(centres, mean, spread) for mean, spread in bumps])
    return sound / sound.sum(1)[:, None], bump / bump.sum(1)[:, None]


def _bump(at: Floats, mean: float, spread: float) -> Floats:
    """Normal, with a part of it drawn out to the left: some wrong labels are memorised soon."""
    tail = np.exp(-(((at - mean + 2 * spread) / (2 * spread)) ** 2) / 2) / 2
    shape: Floats = (1 - SKEWED) * np.exp(-(((at - mean) / spread) ** 2) / 2) + SKEWED * tail
    return shape


def _sizes(counts: Floats, sound: Floats, bump: Floats) -> tuple[Floats, Floats, Floats]:
    """For every tail with every bump at its best size: log-likelihood, that size, and its share of each bin."""
    total = counts.sum()
    first, second = np.repeat(sound, len(bump), 0), np.tile(bump, (len(sound), 1))
    share = np.full((len(first), 1), 0.1)
    for _ in range(ROUNDS):
        mine = share * second
        mine /= np.maximum(mine + (1 - share) * first, 1e-300)
        share = (mine @ counts)[:, None] / total
        share = np.maximum(share, 1e-9)
    mixed = share * second + (1 - share) * first
    return np.log(np.maximum(mixed, 1e-300)) @ counts, share[:, 0] * total, share * second / np.maximum(mixed, 1e-300)


def _log_likelihood(counts: Floats, expected: Floats) -> float:
    return float(np.log(np.maximum(expected / expected.sum(), 1e-300)) @ counts)
