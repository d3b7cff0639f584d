"""Targets so large that the outputs are still on their way to them when the run ends."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import gradients_arrive, said
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import guessing, last_of
from learnscope.reading.course.movement import optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.words import between, count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

HALF_WAY = 0.5
"""Share of the size of the targets that outputs have come to at most, to be on their way."""
GROWN = 2.0
"""Times their size in the first third that outputs have at the end, to be on their way."""


@analysis(place=18, check="scale of the targets", needs=[Objective.target_std, Objective.output_std])
def unscaled_targets(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Outputs that grow and grow, far below targets that are far from 1, and a loss that a constant would beat."""
    found = guessing(reader)
    mean, width = last_of(reader, Objective.target_mean), last_of(reader, Objective.target_std)
    level, spread = series(reader, Objective.output_mean).finite, series(reader, Objective.output_std).finite
    n = len(level) // 3
    if found is None or not found.chance.numbers or found.better is not False or len(optimizers_of(reader)) > 1:
        return []
    if mean is None or width is None or n < cuts.measurements or len(level) != len(spread):
        return []
    wanted, sizes = float(np.hypot(mean, width)), np.hypot(level.values, spread.values)
    now, before = float(sizes[-1]), float(np.median(sizes[:n]))
    if wanted < cuts.large_targets or now > HALF_WAY * wanted or now < GROWN * before:
        return []
    steps = int(level.steps[0]), int(level.steps[-1])
    return [
        Finding(
            kind="targets_out_of_range",
            severity="warning",
            title=f"The targets are not scaled: they are {num(mean)} ± {num(width)}, and outputs have come to "
            f"{num(now)}",
            detail=f"Outputs had a root mean square of {num(before)} in the first third and {num(now)} at the end "
            f"({count(len(level), 'measurement')}, {between(*steps)}), and targets have {num(wanted)}: the weights "
            "have "
            "to grow that far first, and steps are made for weights of about 1. The loss of the best constant, "
            f"{num(found.chance.loss or 0.0)}, has not been reached.",
            advice="Subtract the mean of the targets and divide by their standard deviation, and undo it for what is "
            "predicted; or set the bias of the last layer to their mean. A higher learning rate would get there too, "
            "but would be too high afterwards.",
            evidence=evidence_over(steps, level.probe, Objective.output_std, len(level), now),
            cause=True,
            explains=["not_learning", "plateau", "labels_unrelated", "learning_rate_too_low", "exploding", "vanishing",
                      "exploding_initialisation", "worsening", "overfitting"],
            ruled_out=said(gradients_arrive(reader)),
            since=steps[0],
        )
    ]  # fmt: skip
