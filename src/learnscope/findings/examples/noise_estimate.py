"""How many labels are wrong, from what the ledger knows of every example, and which they are likely to be.

EL2N is ‖p − y‖, p the probabilities that the model gave and y its label as 0 and 1 (arXiv 2107.07075). Above 1 the
model put its confidence in another class, and on average over all presentations it did so before it learned the label
by heart. Sound but hard examples reach that too: their number falls off from interval to interval of EL2N, and what
lies above 1 beyond that course are labels that the other examples speak against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from learnscope.findings import analysis
from learnscope.ledger.ledger import ledger_of
from learnscope.quantities.examples import ExampleLedger
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

FEWEST = 100
"""Examples below which nothing is said."""
PRESENTATIONS = 3
"""Presentations (the median) below which most of what is known is from before anything was learned."""
LEARNED = 0.7
"""Median EL2N above which the model has not learned enough to speak against a label."""
AGAINST = 1.0
"""EL2N above which a model is confident in another class than the label."""
EDGES = np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
"""Between which the number of hard examples falls off; it is followed on to 1.4, the largest EL2N."""
SURE = 4.0
"""Standard deviations of the number expected above 1, by which more must be there."""


@dataclass(frozen=True)
class NoiseEstimate:
    """How many labels are likely to be wrong, and the examples that speak for it."""

    suspects: NDArray[np.bool_]
    """EL2N above 1."""
    number: float
    low: float
    high: float
    expected: float
    """Examples above 1 that the course of the hard ones leads to."""

    @property
    def precision(self) -> float:
        """The share of the suspects whose label is likely to be wrong."""
        return min(self.number / max(int(self.suspects.sum()), 1), 1.0)


def estimate_noise(el2n: ArrayLike, least: float = 0.01) -> NoiseEstimate | None:
    """An estimate with a range; None if there is no sign of wrong labels, or too little is known.

    The numbers of examples in [0.4, 0.5), … [0.8, 0.9) give the factor from one interval to the next, and that the
    number `expected` above 1. Wrong labels are between what lies above 1 beyond that, and all above 0.8. The estimate
    takes half of what is expected off, since hard examples fall off faster the higher EL2N is. None also if what is
    beyond is less than 4 standard deviations, or than the share `least` of all.
    """
    values = np.asarray(el2n, np.float64)
    values = values[np.isfinite(values)]
    if len(values) < FEWEST or float(np.median(values)) > LEARNED:
        return None
    steps = np.histogram(values, EDGES)[0].astype(np.float64) + 0.5  # half a count, since it may be none
    factor = min((steps[-1] / steps[0]) ** (1 / (len(steps) - 1)), 1.0)
    expected = float(steps[-1] * sum(factor**power for power in range(2, 7)))
    suspects = np.asarray(el2n, np.float64) > AGAINST
    above = int(suspects.sum())
    beyond = above - expected
    if beyond < SURE * math.sqrt(expected + 1) or beyond < least * len(values):
        return None
    low = max(beyond - 2 * math.sqrt(above), 1.0)
    high = float((values > EDGES[-2]).sum()) + 2 * math.sqrt(above)
    return NoiseEstimate(suspects, above - expected / 2, low, high, expected)


def suspicious(frame: pd.DataFrame) -> pd.DataFrame:
    """The examples whose label the model doubted most, with the share of wrong ones expected among them."""
    ranked = frame.sort_values("el2n_mean", ascending=False, kind="stable")
    found = estimate_noise(ranked["el2n_mean"].to_numpy(np.float64))
    columns = [name for name in ("id", "target", "el2n_mean", "aum", "confidence", "presentations") if name in ranked]
    chosen = ranked.loc[ranked["el2n_mean"] > AGAINST, columns].reset_index(drop=True)
    chosen.attrs = {} if found is None else {
        "number": found.number, "low": found.low, "high": found.high, "precision": found.precision
    }  # fmt: skip
    return chosen


@analysis(place=60, check="wrong labels", needs=[ExampleLedger.mean_el2n])
def label_noise(reader: RunReader, cuts: Cuts) -> list[Finding]:
    ledger = ledger_of(reader.backend)
    frame = None if ledger is None else ledger.frame()
    if frame is None or "target" not in frame or not frame["target"].notna().all():
        return []
    if len(frame) < FEWEST or float(frame["presentations"].median()) < PRESENTATIONS:
        return []
    found = estimate_noise(frame["el2n_mean"].to_numpy(np.float64), cuts.noisy_share)
    return [] if found is None else [_finding(frame, found, cuts)]


def _finding(frame: pd.DataFrame, found: NoiseEstimate, cuts: Cuts) -> Finding:
    n, above = len(frame), int(found.suspects.sum())
    worst = frame.sort_values("el2n_mean", ascending=False, kind="stable")["id"].head(cuts.names_listed)
    by_class = frame.loc[found.suspects, "target"].value_counts(normalize=True)
    most = by_class.index[0]
    where = f" Of these, {percent(float(by_class.iloc[0]))} have the label {most}." if by_class.iloc[0] > 0.3 else ""
    return Finding(
        kind="label_noise",
        severity="warning",
        title=f"About {num(found.number)} of {n:,} labels are likely to be wrong ({percent(found.number / n)})",
        detail=f"For {count(above, 'example')} the model was confident in another class than the label, on average "
        "over "
        f"{num(float(frame['presentations'].median()))} presentations (mean EL2N above 1); the course of the hard "
        f"examples leads to at most {num(found.expected)} of them. Between {num(found.low)} and {num(found.high)} "
        "labels "
        f"are wrong by this. The most doubtful are "
        f"{listed([str(example) for example in worst], cuts.names_listed)}.{where}",
        advice=f"Look at run.suspicious_labels(), the most doubtful first: of the {above:,}, about "
        f"{percent(found.precision)} should be wrong. Correct or leave them out; training longer learns them by heart.",
        evidence=Evidence(
            probe=ExampleLedger.probe, name="el2n_mean", n=n, value=found.number / n,
            interval=(found.low / n, min(found.high / n, 1.0)),
        ),
        cause=True,
        explains=["overfitting", "worsening", "plateau", "memorised", "not_generalising"],
        alternatives=["Classes that overlap, or a group of examples unlike the rest: look whether the doubtful ones "
                      "belong together."],
    )  # fmt: skip
