"""Inputs and targets that belong together up to a step, and no longer: a loss that jumps to chance and stays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Loss, Objective
from learnscope.quantities.updates import LoopCalls
from learnscope.reading.course.chance import guessing
from learnscope.reading.course.loss_course import MEDIAN_ERROR, SURE, Course, loss_course, noise_of
from learnscope.reading.course.movement import moves_of, optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

AROUND = 5
"""Losses on each side of a jump."""
LEARNED, CHANCE = 0.9, (0.95, 1.5)
"""Shares of the loss of a guess: below which something had been learned, and between which it is gone."""
SUDDEN = 0.5
"""Share of the jump that a single step makes at least."""
AS_BEFORE = 0.3, 3.0
"""Times their spread before the jump that outputs have after it, if the model is the same: it is not broken."""


@dataclass(frozen=True)
class Jump:
    step: int
    before: float
    after: float


@analysis(place=24, check="inputs and targets that stay together", needs=[Loss.loss, Objective.objective_mean,
          Inputs.output_spread])  # fmt: skip
def parted(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found, course, moves = guessing(reader), loss_course(reader), moves_of(reader)
    if found is None or found.course is None or found.chance.loss is None or course is None or moves is None:
        return []
    jump = _jump(found.course, found.chance.loss)
    if jump is None or len(optimizers_of(reader)) > 1 or _written(reader, jump.step):
        return []
    spread = series(reader, Inputs.output_spread, data="train").finite
    same = _same_model(spread, jump.step)
    if same is None or float(np.median(moves.per_step)) >= cuts.large_step:
        return []
    ends = int(course.steps[0]), int(course.steps[-1])
    return [
        Finding(
            kind="labels_unrelated",
            severity="warning",
            title=f"From step {jump.step:,} on the targets no longer belong to their inputs: the loss jumps from "
            f"{num(jump.before)} to {num(jump.after)} and stays at chance",
            detail=f"It was {num(jump.before)} in the {AROUND} steps before and {num(jump.after)} in those after "
            f"(medians), and guessing gives {num(found.chance.loss)}; at the end it is "
            f"{num(found.course.end.value)}. The model was the same on both sides: the outputs of different examples "
            f"differ by {num(same)} times as much as before. So it is the data that changed.",
            advice="Look at what happens at that step: a new epoch that shuffles inputs and not their labels, a "
            "second file, a sampler or a cache that is joined by place and not by id.",
            evidence=evidence_over(ends, course.probe, course.name, len(course), jump.after - jump.before),
            cause=True,
            explains=["diverging", "worsening", "overfitting", "loss_spike", "bad_batch", "not_learning", "plateau",
                      "learning_rate_too_high", "label_noise", "labels_unrelated", "memorised", "not_generalising"],
            ruled_out=["A step that was too large: outputs are as spread as before.",
                       "Weights that were replaced: only the optimizer wrote them."],
            since=jump.step,
        )
    ]  # fmt: skip


def _jump(course: Course, chance: float) -> Jump | None:
    """The sharpest rise from what was learned to chance, if the loss never comes back."""
    if course.end.value < CHANCE[0] * chance or course.end.value > CHANCE[1] * chance:
        return None
    best = None
    for place in range(2 * AROUND, len(course) - 2 * AROUND):
        earlier, later = course.values[place - AROUND : place], course.values[place : place + AROUND]
        before, after = float(np.median(earlier)), float(np.median(later))
        rise = after - before
        noise = noise_of(course.values[place - 2 * AROUND : place])
        sure = rise > 2 * SURE * MEDIAN_ERROR * noise * (2 / AROUND) ** 0.5 and later.min() > earlier.max()
        sudden = course.values[place] - course.values[place - 1] > SUDDEN * rise
        at_chance = before < LEARNED * chance and CHANCE[0] * chance < after < CHANCE[1] * chance
        if sure and sudden and at_chance and (best is None or rise > best.after - best.before):
            best = Jump(int(course.steps[place]), before, after)
    if best is None or float(np.min(_smoothed(course.values[course.steps >= best.step]))) < LEARNED * chance:
        return None
    return best


def _smoothed(values: np.ndarray) -> np.ndarray:
    smooth: np.ndarray = np.convolve(values, np.full(AROUND, 1 / AROUND), "valid")
    return smooth


def _same_model(spread: Series, step: int) -> float | None:
    """How spread outputs are at the first look after a step, in units of the last before; None if they are others."""
    before, after = spread.values[spread.steps < step], spread.values[spread.steps >= step]
    if not len(before) or not len(after) or not before[-1] > 0:
        return None
    times = float(after[0] / before[-1])
    return times if AS_BEFORE[0] < times < AS_BEFORE[1] else None


def _written(reader: RunReader, step: int) -> bool:
    written = series(reader, LoopCalls.weights_written).finite
    near = (written.steps >= step) & (written.steps < step + 2 * 10)
    return bool(written.values[near].any())
