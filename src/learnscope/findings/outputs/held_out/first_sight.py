"""What is learned from training examples that are new to the model, and not seen on the holdout: they differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.held_out.worse_on_holdout import WORSE_ON_HOLDOUT
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.loss_course import SURE, Level, loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

LEAST_STEPS = 20
"""Steps without a row that came again, below which too little was seen for the first time."""
LEARNED = 0.1
"""Share of its start that a training loss has lost on new examples, for something to be learned that is no memory."""
CARRIED_OVER = 0.25
"""Share of this that a holdout loss lost at its best, from which what is learned helps there too."""
ALIKE = 1.5
"""Times the first training loss that the first holdout loss is at most, and the reverse, for them to be one loss."""


@dataclass(frozen=True)
class FirstPass:
    """The training loss while all rows that were looked at were new, and the holdout loss."""

    until: int
    level: Level
    start: float
    holdout: Series


def first_pass(reader: RunReader, cuts: Cuts) -> FirstPass | None:
    """None unless training got better on new rows, and the holdout hardly did, then or later."""
    seen, course, held = series(reader, Inputs.seen_share).finite, loss_course(reader), held_out_loss(reader)
    losses = held.series.finite
    again = np.flatnonzero(seen.values > 0)
    # rows that never come again may be changed at random each time, and be the same examples all the same
    if course is None or held.stand_in is not None or not len(again) or again[0] < 2 or len(losses) < 2:
        return None
    until = int(seen.steps[again[0] - 1])
    levels = [level for level in course.levels if level.last <= until]
    beside = losses.values[(losses.steps > 1) & (losses.steps <= until)]
    first, start = float(losses.values[0]), course.start
    if until < LEAST_STEPS or not levels or not len(beside) or losses.steps[0] > 1 or min(first, start.value) <= 0:
        return None
    gained, theirs = 1 - levels[-1].value / start.value, 1 - float(losses.values.min()) / first
    one_loss = 1 / ALIKE < start.value / first < ALIKE
    if gained < LEARNED or start.above(levels[-1]) <= SURE or not one_loss:
        return None
    if theirs > min(CARRIED_OVER * gained, cuts.slow_gain):
        return None
    return FirstPass(until, levels[-1], start.value, losses)


def differs_at_first_sight(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = first_pass(reader, cuts)
    if found is None:
        return []
    losses, level = found.holdout, found.level
    return [
        Finding(
            kind="holdout_differs",
            severity="warning",
            title="The holdout is not like the training data, or is not read alike: what is learned of new examples "
            "does not help on it",
            detail=f"Up to step {found.until:,} no training row that was looked at had come before, and the training "
            f"loss went from {num(found.start)} to {num(level.value)} by then: that is no memory. The holdout loss was "
            f"{num(float(losses.values[0]))} at first and {num(float(losses.values.min()))} at its best in "
            f"{count(len(losses), 'measurement')}.",
            advice="Compare a training batch and a holdout batch as the model gets them: order of columns or pixels, "
            "tokenizer, class numbers, masks, positions, and columns that are filled in only afterwards or give the "
            "target away. Then run the model in eval mode on training examples: if it fails there too, it is the model "
            "that differs (what depends on self.training), and not the data.",
            evidence=evidence_over(
                (int(losses.steps[0]), int(losses.steps[-1])), losses.probe, Holdout.holdout_loss, len(losses),
                float(losses.values.min()),
            ),
            cause=True,
            explains=WORSE_ON_HOLDOUT[:-1],
            ruled_out=["Overfitting: the training loss fell on examples that the model had not seen."],
            since=int(losses.steps[1]),
        )
    ]  # fmt: skip
