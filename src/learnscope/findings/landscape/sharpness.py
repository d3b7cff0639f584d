"""Sharpness beside the largest that the optimizer bears."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over, since
from learnscope.quantities import Quantity
from learnscope.quantities.landscape import LossLandscape
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, labels_of, series
from learnscope.reading.streaks import streaks
from learnscope.reading.words import between, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

RATIOS = {
    LossLandscape.preconditioned_ratio: ("Adam's preconditioned sharpness", "(2 + 2β₁)/((1 − β₁)η)"),
    LossLandscape.momentum_ratio: ("the sharpness", "that of gradient descent with momentum"),
    LossLandscape.sharpness_ratio: ("the sharpness", "2/η"),
}
"""The ratios to a threshold, the optimizer's own first."""


@analysis(place=90, check="edge of stability", needs=[tuple(RATIOS)])
def landscape(reader: RunReader, cuts: Cuts) -> list[Finding]:
    findings = []
    for label in labels_of(reader, LossLandscape):
        for ratio in RATIOS:
            ratios = series(reader, ratio, probe=label).finite
            if len(ratios):
                findings += _edge(label, ratio, ratios, cuts)
                break
    return findings


def _edge(label: str, ratio: Quantity, ratios: Series, cuts: Cuts) -> list[Finding]:
    near = np.abs(ratios.values - 1) <= cuts.edge_band
    runs = streaks(near[:, None], np.ones((len(ratios), 1), dtype=bool), cuts.measurements)
    if not runs:
        return []
    [streak] = runs
    values, steps = ratios.values[streak.rows], ratios.steps[streak.rows]
    first, last = int(steps[0]), int(steps[-1])
    what, threshold = RATIOS[ratio]
    return [
        Finding(
            kind="edge_of_stability",
            severity="info",
            title=f"Training at the edge of stability {since(runs, ratios.steps)}",
            detail=f"In {len(values):,} consecutive measurements, {between(first, last)}, {what} was "
            f"{num(float(values.min()))} to {num(float(values.max()))} times the threshold {threshold}, beyond which "
            "the optimizer oscillates along the sharpest direction.",
            advice="Nothing is wrong: full-batch training settles there, and the loss falls over many steps though not "
            "at each. If it spikes or stalls, lower the learning rate or warm it up for longer.",
            evidence=evidence_over((first, last), label, ratio, len(values), float(np.median(values))),
        )
    ]
