"""How many labels are wrong, from what the ledger knows of every example, and which they are likely to be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from learnscope.findings import analysis
from learnscope.findings.examples.noise_mixture import HIGHEST, Mixture, fit
from learnscope.ledger.stored import stored_frame
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
LIKELY = 0.5
"""Probability of a wrong label from which an example is listed."""
INFLATE, MARGIN = 3.0, 0.05
"""What likelihoods are divided by, and by how much of itself each end of the interval is moved out, since real examples
have no exact shape. Chosen so that 125 of 126 intervals held the true number; how many did on other data is in
docs/diagnosis.md."""
GAIN, EACH = 30.0, 0.5
"""Twice the log-likelihood that wrong labels must add, in all and for each of them. Without a wrong label, hard
examples add up to 61, and up to 0.4 for each where they add more than 30 and lie where wrong labels would."""
LARGE_GAIN, EACH_OF_MANY = 60.0, 0.2
"""The same where they add much: of many wrong labels, most are told from hard examples less well."""
MANY, LEAST_PART = 1000, 0.4
"""Examples below which less is enough, in proportion, down to this part: what hard examples add grows with them."""
BELOW_MIRROR = 0.16
"""The model is as sure against a wrong label as it is of a sound one: these have √2 minus the EL2N of sound ones, and
no more than this below. A model that is too small for its data is against labels too, and is less sure."""


@dataclass(frozen=True)
class NoiseEstimate:
    """How many labels are likely to be wrong, and the examples that speak for it."""

    probability: NDArray[np.float64]
    """That its label is wrong, of every example."""
    number: float
    low: float
    high: float
    """Of a 95 % interval."""

    @property
    def suspects(self) -> NDArray[np.bool_]:
        return self.probability > LIKELY

    @property
    def precision(self) -> float:
        """The share of the suspects whose label is likely to be wrong."""
        return float(self.probability[self.suspects].mean()) if self.suspects.any() else 0.0


def estimate_noise(el2n: ArrayLike, least: float = 0.01) -> NoiseEstimate | None:
    """An estimate with an interval; None if there is no sign of wrong labels, or too little is known.

    The interval is of all bumps that fit almost as well (`noise_mixture`), and of chance: how many labels turn out
    wrong at a given rate. None also below the share `least` of all.
    """
    values = np.asarray(el2n, np.float64)
    known = values[np.isfinite(values)]
    if len(known) < FEWEST or float(np.median(known)) > LEARNED:
        return None
    found = fit(known, INFLATE)
    if found is None or found.low <= 0 or found.number < least * len(known) or not _told_apart(found, known):
        return None
    low = max((1 - MARGIN) * found.low - 2 * math.sqrt(found.low), 1.0)
    high = min((1 + MARGIN) * found.high + 2 * math.sqrt(found.high), float(len(known)))
    return NoiseEstimate(np.nan_to_num(found.probability(values)), found.number, low, high)


def _told_apart(found: Mixture, values: NDArray[np.float64]) -> bool:
    """Whether the bump is there, and where wrong labels would be."""
    part = min(max(len(values) / MANY, LEAST_PART), 1.0)
    surely = found.gain >= part * GAIN and found.gain >= EACH * found.number
    if not surely and not (found.gain >= part * LARGE_GAIN and found.gain >= EACH_OF_MANY * found.number):
        return False
    suspects = found.probability(values) > LIKELY
    if not suspects.any() or suspects.all():
        return False
    return bool(HIGHEST - np.median(values[suspects]) <= np.median(values[~suspects]) + BELOW_MIRROR)


def suspicious(frame: pd.DataFrame) -> pd.DataFrame:
    """The examples whose label the model doubted most, with the class that it held for right instead."""
    ranked = frame.sort_values("el2n_mean", ascending=False, kind="stable")
    found = estimate_noise(ranked["el2n_mean"].to_numpy(np.float64))
    if "other_class" in ranked:
        ranked = ranked.rename(columns={"other_class": "suggested", "other_votes": "votes"})
    names = ("id", "target", "suggested", "votes", "el2n_mean", "aum", "confidence", "presentations")
    columns = [name for name in names if name in ranked]
    if found is None:
        chosen = ranked.loc[ranked["el2n_mean"] > AGAINST, columns].reset_index(drop=True)
        chosen.attrs = {}
        return chosen
    chosen = ranked.loc[found.suspects, columns].reset_index(drop=True)
    chosen["probability"] = found.probability[found.suspects]
    chosen.attrs = {"number": found.number, "low": found.low, "high": found.high, "precision": found.precision}
    return chosen


@analysis(place=60, check="wrong labels", needs=[ExampleLedger.mean_el2n])
def label_noise(reader: RunReader, cuts: Cuts) -> list[Finding]:
    frame = stored_frame(reader.backend)
    if frame is None or "target" not in frame or not frame["target"].notna().all():
        return []
    if len(frame) < FEWEST or float(frame["presentations"].median()) < PRESENTATIONS:
        return []
    found = estimate_noise(frame["el2n_mean"].to_numpy(np.float64), cuts.noisy_share)
    return [] if found is None else [_finding(frame, found, cuts)]


def _finding(frame: pd.DataFrame, found: NoiseEstimate, cuts: Cuts) -> Finding:
    n, suspects = len(frame), frame[found.suspects]
    worst = suspects.sort_values("el2n_mean", ascending=False, kind="stable").head(cuts.names_listed)
    return Finding(
        kind="label_noise",
        severity="warning",
        title=f"About {num(found.number)} of {n:,} labels are likely to be wrong ({percent(found.number / n)}; "
        f"{num(found.low)} to {num(found.high)})",
        detail=f"Of {count(len(suspects), 'example')} the model was confident in another class than the label, on "
        f"average over {num(float(frame['presentations'].median()))} presentations: their mean EL2N makes a bump "
        "beside "
        f"that of the hard examples. By its size {num(found.number)} labels are wrong (95 % interval "
        f"{num(found.low)} to {num(found.high)}). The most doubtful are "
        f"{listed(_told(worst), cuts.names_listed)}.{_from_to(suspects)}",
        advice=f"Look at run.suspicious_labels(), the most doubtful first, with the class that each seems to have: of "
        f"the {len(suspects):,}, about {percent(found.precision)} should be wrong. Correct or leave them out; training "
        "longer memorises them.",
        evidence=Evidence(
            probe=ExampleLedger.probe, name="el2n_mean", n=n, value=found.number / n,
            interval=(found.low / n, min(found.high / n, 1.0)),
        ),
        cause=True,
        explains=["overfitting", "worsening", "plateau", "memorised", "not_generalising"],
        alternatives=["Classes that overlap, or a group of examples unlike the rest: look whether the doubtful ones "
                      "belong together."],
    )  # fmt: skip


def _told(worst: pd.DataFrame) -> list[str]:
    """`17 (label 3, looks like 8)`, of each."""
    others = worst["other_class"] if "other_class" in worst else worst["target"].where(worst["target"].isna())
    likes = ["" if none else f", looks like {other}" for other, none in zip(others, others.isna(), strict=True)]
    rows = zip(worst["id"], worst["target"], likes, strict=True)
    return [f"{example} (label {label}{like})" for example, label, like in rows]


def _from_to(suspects: pd.DataFrame) -> str:
    """A sentence if many of the suspects have the same label and look like the same class."""
    if "other_class" not in suspects or not suspects["other_class"].notna().any():
        by_class = suspects["target"].value_counts(normalize=True)
        most = float(by_class.iloc[0]) if len(by_class) else 0.0
        return f" Of these, {percent(most)} have the label {by_class.index[0]}." if most > 0.3 else ""
    one_way = suspects.groupby("target", observed=True)["other_class"].agg(_share_of_largest)
    sizes = suspects.groupby("target", observed=True).size()
    mean = float((one_way * sizes).sum() / sizes.sum())
    if mean < 0.6 or suspects["other_class"].nunique() < 3:
        return ""
    return f" {percent(mean)} of those of a label look like one and the same class: labels were not moved at random."


def _share_of_largest(classes: pd.Series[int]) -> float:
    shares = classes.value_counts(normalize=True)
    return float(shares.iloc[0]) if len(shares) else 0.0
