"""What is learned from training examples that are new to the model, and not seen on the holdout: they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.held_out.worse_on_holdout import WORSE_ON_HOLDOUT
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Holdout
from learnscope.reading.course.chance import AT_CHANCE, chance_of
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
FEW_TIMES = 3.0
"""Times that a training row has come, up to which much of what is learned is no memory either."""
SOME = 0.05, 0.9
"""Shares of rows seen before, between which they say how many different ones there are."""
LEARNED_MUCH = 0.4
"""The same as `LEARNED` for rows that have come a few times."""
ALIKE = 1.5
"""Times the first training loss that the first holdout loss is at most, and the reverse, for them to be one loss."""


@dataclass(frozen=True)
class FirstPass:
    """The training loss while all rows that were looked at were new, and the holdout loss."""

    until: int
    level: Level
    start: float
    holdout: Series
    again: bool = False
    """Whether rows had come again by then, a few times at most."""


def first_pass(reader: RunReader, cuts: Cuts) -> FirstPass | None:
    """None unless training got better on new rows, and the holdout hardly did, then or later."""
    seen, course, held = series(reader, Inputs.seen_share).finite, loss_course(reader), held_out_loss(reader)
    losses = held.series.finite
    again = np.flatnonzero(seen.values > 0)
    # rows that never come again may be changed at random each time, and be the same examples all the same
    if course is None or held.stand_in is not None or not len(again) or again[0] < 2 or len(losses) < 2:
        return None
    first = _learned(reader, int(seen.steps[again[0] - 1]), LEARNED, losses, cuts)
    if first is not None:
        return first
    often = few_times(reader, seen)
    later = None if often is None else _learned(reader, often, LEARNED_MUCH, losses, cuts)
    return None if later is None else replace(later, again=True)


def few_times(reader: RunReader, seen: Series, times: float = FEW_TIMES) -> int | None:
    """The step at which a row had come so many times on average.

    A row was there at one of the looked-at steps before with the share of all rows that these have shown: this says
    how many there are.
    """
    distinct, rows = series(reader, Inputs.distinct_rows).finite, series(reader, Inputs.rows).finite
    if len(distinct) != len(seen) or len(rows) != len(seen) or not len(rows):
        return None
    known = np.flatnonzero((seen.values[1:] > SOME[0]) & (seen.values[1:] < SOME[1])) + 1
    if len(known) < 2:
        return None
    examples = float(np.median(distinct.values[known - 1] / seen.values[known]))
    return int(times * examples / max(float(np.median(rows.values)), 1.0))


def _learned(reader: RunReader, until: int, least: float, losses: Series, cuts: Cuts) -> FirstPass | None:
    """What training had gained by a step, if that is at least a share `least` and the holdout hardly gained at all."""
    course = loss_course(reader)
    if course is None:
        return None
    levels = [level for level in course.levels if level.last <= until]
    beside = losses.values[(losses.steps > 1) & (losses.steps <= until)]
    first, start = float(losses.values[0]), course.start
    if until < LEAST_STEPS or not levels or not len(beside) or losses.steps[0] > 1 or min(first, start.value) <= 0:
        return None
    gained, theirs = 1 - levels[-1].value / start.value, 1 - float(losses.values.min()) / first
    chance = chance_of(reader)
    guess = None if chance is None else chance.loss
    if guess is not None and levels[-1].value > AT_CHANCE[0] * guess:  # from a bad start to guessing
        return None
    one_loss = 1 / ALIKE < start.value / first < ALIKE
    if gained < least or start.above(levels[-1]) <= SURE or not one_loss:
        return None
    if theirs > min(CARRIED_OVER * gained, cuts.slow_gain):
        return None
    return FirstPass(until, levels[-1], start.value, losses)


def _how_often(found: FirstPass) -> str:
    if found.again:
        return f"a training row had come {num(FEW_TIMES)} times on average"
    return "no training row that was looked at had come before"


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
            detail=f"Up to step {found.until:,} {_how_often(found)}, and the training "
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
            ruled_out=[
                "Overfitting: the training loss fell before the model could have memorised its examples."
                if found.again
                else "Overfitting: the training loss fell on examples that the model had not seen."
            ],
            since=int(losses.steps[1]),
        )
    ]  # fmt: skip
