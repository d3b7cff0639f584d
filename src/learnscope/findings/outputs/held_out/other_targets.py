"""Targets of the holdout that are not like those of training: of another level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis, no_held_out
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.held_out.worse_on_holdout import WORSE_ON_HOLDOUT, gap
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import last_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.held_out import held_labels, held_out_loss
from learnscope.reading.words import num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

SOMEWHAT = 0.5
"""Standard deviations between the means from which targets differ, if the holdout is predicted badly."""
FEWEST = 30
"""Targets of the holdout below which their mean says little."""


@dataclass(frozen=True)
class Targets:
    mean: float
    std: float
    n: int


def held_targets(reader: RunReader) -> Targets | None:
    """Of the holdout, where they are numbers that were kept."""
    labels = held_labels(reader)
    if labels is None or labels.size < FEWEST or not np.issubdtype(labels.dtype, np.floating):
        return None
    return Targets(float(labels.mean()), float(labels.std()), int(labels.size)) if np.isfinite(labels).all() else None


@analysis(place=26, check="holdout's targets like those of training", needs=[Objective.target_std],
          unless=no_held_out)  # fmt: skip
def other_targets(reader: RunReader, cuts: Cuts) -> list[Finding]:
    theirs = None if no_held_out(reader) is not None else held_targets(reader)
    mean, std = last_of(reader, Objective.target_mean), last_of(reader, Objective.target_std)
    if theirs is None or mean is None or not std:
        return []
    shift, ratio = abs(theirs.mean - mean) / std, theirs.std / std
    bad = _badly(reader, theirs, cuts)
    if shift < (SOMEWHAT if bad else cuts.other_level):  # the spread of numbers with heavy tails is hardly ever alike
        return []
    found = series(reader, Objective.target_std).finite
    steps = int(found.steps[0]), int(found.steps[-1])
    return [
        Finding(
            kind="holdout_differs",
            severity="warning",
            title=f"The holdout's targets are others than those of training: {num(theirs.mean)} ± {num(theirs.std)}, "
            f"in training {num(mean)} ± {num(std)}",
            detail=f"Their means are {num(shift)} standard deviations of the training targets apart, and their "
            f"standard deviation is {num(ratio)} times as large (n = {theirs.n:,}).{bad} What is learned of the "
            "one is judged on the other.",
            advice="Look at how the data were split and filled in: a sorted file that is cut without shuffling, groups "
            "or times that are in one part only, and missing targets that became 0 or −1 in one of them.",
            evidence=evidence_over(steps, found.probe, Objective.target_std, len(found), shift),
            cause=True,
            explains=WORSE_ON_HOLDOUT,
            alternatives=["A holdout that is meant to be different, as of a later time: then this is its price."],
            since=steps[0],
        )
    ]


def _badly(reader: RunReader, theirs: Targets, cuts: Cuts) -> str:
    """A sentence if the holdout is predicted badly: worse than by its own mean, or far worse than training."""
    held, times = held_out_loss(reader), gap(reader)
    losses = held.series.finite.values
    if not len(losses) or held.stand_in is not None:
        return ""
    if last_of(reader, Objective.constant_loss) is not None and float(losses[-1]) > theirs.std**2 > 0:
        return (
            f" The holdout loss is {num(float(losses[-1]))}, and the mean of its own targets would give "
            f"{num(theirs.std**2)}."
        )
    if times is not None and times > cuts.worse_holdout:
        return f" The holdout loss is {num(times)} times the training loss."
    return ""
