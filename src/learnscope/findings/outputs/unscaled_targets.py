"""Targets so large that the outputs are still on their way to them when the run ends."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import gradients_arrive, said
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import Guessing, guessing, last_of
from learnscope.reading.course.movement import optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import between, count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

HALF_WAY = 0.5
"""Share of the size of the targets that outputs have come to at most, to be on their way."""
GROWN = 2.0
"""Times their size in the first third that outputs have at the end, to be on their way."""

MUCH_OF_THE_RUN = 0.25
"""Share of the steps that outputs take at least to come to the level of the targets, for it to have cost the run."""
UNLEARNED = 0.75
"""Share of the loss of the best constant above which hardly more than a constant was learned."""
EXPLAINED = (
    "not_learning", "plateau", "labels_unrelated", "learning_rate_too_low", "exploding", "vanishing",
    "exploding_initialisation", "worsening", "overfitting",
)  # fmt: skip


@analysis(place=18, check="scale of the targets", needs=[Objective.target_std, Objective.output_std])
def unscaled_targets(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """Outputs that grow and grow, far below targets that are far from 1, and a loss that a constant would beat; or that
    took much of the run to get to their level, and have hardly begun to tell examples apart."""
    found = guessing(reader)
    mean, width = last_of(reader, Objective.target_mean), last_of(reader, Objective.target_std)
    level, spread = series(reader, Objective.output_mean).finite, series(reader, Objective.output_std).finite
    n = len(level) // 3
    if found is None or not found.chance.numbers or len(optimizers_of(reader)) > 1:
        return []
    if mean is None or width is None or n < cuts.measurements or len(level) != len(spread):
        return []
    wanted, sizes = float(np.hypot(mean, width)), np.hypot(level.values, spread.values)
    now, before = float(sizes[-1]), float(np.median(sizes[:n]))
    if wanted < cuts.large_targets or now < GROWN * before:
        return []
    if now > HALF_WAY * wanted:
        return _late_to_arrive(reader, found, level, spread, (mean, width))
    if found.better is not False:
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
            explains=EXPLAINED,
            ruled_out=said(gradients_arrive(reader)),
            since=steps[0],
        )
    ]  # fmt: skip


def _late_to_arrive(
    reader: RunReader, found: Guessing, level: Series, spread: Series, targets: tuple[float, float]
) -> list[Finding]:
    """Targets that lie far from 0 beside their spread: the way to their mean took the steps that were to learn."""
    mean, width = targets
    far = np.flatnonzero(np.abs(level.values - mean) > max(HALF_WAY * abs(mean), width))
    steps, end = (int(level.steps[0]), int(level.steps[-1])), found.course
    if not len(far) or end is None or found.chance.loss is None or abs(mean) < width:
        return []
    if end.start.value < GROWN * found.chance.loss:  # the way was not what the loss was about
        return []
    arrived, now = int(level.steps[min(int(far[-1]) + 1, len(level) - 1)]), float(spread.values[-1])
    if arrived < MUCH_OF_THE_RUN * steps[1] or now > HALF_WAY * width or end.end.value < UNLEARNED * found.chance.loss:
        return []
    return [
        Finding(
            kind="targets_out_of_range",
            severity="warning",
            title=f"The targets are not scaled: they are {num(mean)} ± {num(width)}, and outputs needed "
            f"{count(arrived, 'step')} to get there",
            detail=f"Outputs began at {num(float(level.values[0]))} on average and came near {num(mean)} at step "
            f"{arrived:,} of {steps[1]:,}; over examples they differ by {num(now)} (standard deviation), and targets "
            f"by {num(width)}. The loss is {num(end.end.value)}, and the best constant gives "
            f"{num(found.chance.loss)}: so far that constant is most of what was learned.",
            advice="Subtract the mean of the targets and divide by their standard deviation, and undo it for what is "
            "predicted; or set the bias of the last layer to their mean. Then train as long as before.",
            evidence=evidence_over(steps, level.probe, Objective.output_mean, len(level), float(level.values[-1])),
            cause=True,
            explains=EXPLAINED,
            ruled_out=said(gradients_arrive(reader)),
            since=steps[0],
        )
    ]
