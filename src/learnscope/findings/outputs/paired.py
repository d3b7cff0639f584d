"""How much the loss of the same holdout examples rose between two measurements, with an interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.intervals import ratio_interval
from learnscope.reading.gather import Floats
from learnscope.reading.words import count, num
from learnscope.store.backend import RunError
from learnscope.store.reader import RunReader

RESAMPLES = 2000
SMALL = 5_000
"""Examples up to which the interval is bootstrapped; beyond, the mean is normal for all purposes."""


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences with a 95 % interval."""

    mean: float
    interval: tuple[float, float] | None
    n: int
    how: str
    """How the interval was computed, or why there is none."""
    dropped: int = 0


def paired_rise(reader: RunReader, label: str, best: int, last: int) -> Difference | None:
    """The rise of each example's own loss; None unless both steps kept them for two examples at least."""
    ids, means = [], []
    for step in (best, last):
        try:
            arrays = reader.arrays(label, step)
            losses, examples = arrays["losses"], arrays["example"]
        except (KeyError, RunError):  # nothing was kept, or its file is gone
            return None
        # the mean over each example's positions: long examples must not count for more
        unique, where = np.unique(examples.reshape(-1), return_inverse=True)
        sums = np.bincount(where, weights=losses.reshape(-1).astype(np.float64))
        ids.append(unique)
        means.append(sums / np.bincount(where))
    _, first, second = np.intersect1d(ids[0], ids[1], assume_unique=True, return_indices=True)
    differences = means[1][second] - means[0][first]
    finite = differences[np.isfinite(differences)]
    return paired_interval(finite, dropped=len(differences) - len(finite)) if len(finite) >= 2 else None


def paired_interval(differences: Floats, dropped: int = 0) -> Difference:
    """Mean and 95 % interval of paired differences, over examples.

    By `ratio_interval`, so that the same data always gives the same interval; for very many examples
    mean ± 1.96 s/√n, which is then the same to within rounding.
    """
    n, mean = len(differences), float(differences.mean())
    if n > SMALL:
        half = 1.96 * float(differences.std(ddof=1)) / n**0.5
        return Difference(mean, (mean - half, mean + half), n, "normal approximation", dropped)
    low, high, reason = ratio_interval(differences, np.ones(n), resamples=RESAMPLES)
    if reason is not None:
        return Difference(mean, None, n, reason, dropped)
    return Difference(mean, (low, high), n, f"studentised bootstrap of {RESAMPLES:,}", dropped)


def paired_sentence(paired: Difference | None) -> str:
    if paired is None:
        return "No losses per example were kept at both steps, so there is no interval: this is weaker evidence."
    lost = f"; {count(paired.dropped, 'example')} without a finite loss left out" if paired.dropped else ""
    rise = f"Paired by example the rise is {num(paired.mean)}"
    if paired.interval is None:
        return f"{rise}, without an interval ({paired.how}{lost}): this is weaker evidence."
    low, high = paired.interval
    return f"{rise} (95 % interval {num(low)} to {num(high)}, {paired.how} over n = {paired.n:,} examples{lost})."
