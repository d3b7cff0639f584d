"""Masks that are learned as one and the same for every picture: where something usually is, and not where it is."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.ruled_out import gradients_arrive, rate_is_right, said
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import Guessing, guessing, last_of, one_question
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import optimizers_of
from learnscope.reading.course.pace import hardly_begun
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

LONG = 100
"""Losses below which the targets are not doubted."""
NARROW = 4
"""Answers of one example below which they are no map."""
ALIKE = 0.1
"""Spread of the outputs over examples, in units of their size, below which they are one map for all."""
ENOUGH = 0.05
"""Share of the rarer answer among the targets, from which telling examples apart would have paid."""
STAYS = 0.03
"""Share of itself that a loss gained in the later half at most, to have come to its end."""


@analysis(place=82, check="masks that follow their pictures", needs=[Inputs.output_spread, Objective.majority_share])
def same_map(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found, course = guessing(reader), loss_course(reader)
    spread, size = (series(reader, q, data="train").finite for q in (Inputs.output_spread, Inputs.output_rms))
    n = len(spread) // 3
    if found is None or course is None or len(course) < LONG or n < cuts.measurements or len(size) != len(spread):
        return []
    if not found.chance.function.startswith("binary") or one_question(reader) or len(optimizers_of(reader)) > 1:
        return []
    if _wide(reader) < NARROW:
        return []
    share = spread.values / np.maximum(size.values, 1e-300)
    late, middle = float(np.median(share[-n:])), float(np.median(share[n : 2 * n]))
    # what can be told from the inputs makes outputs differ more and more
    if late > ALIKE or late > middle or not _places_alone(reader, found) or hardly_begun(reader, cuts):
        return []
    half = course.levels[len(course.levels) // 2].value
    if half - course.end.value > STAYS * abs(half):
        return []
    return [_finding(reader, found, spread, late, n)]


def _wide(reader: RunReader) -> float:
    width = series(reader, Inputs.output_width, data="train").finite.values
    return float(np.median(width)) if len(width) else 0.0


def _places_alone(reader: RunReader, found: Guessing) -> bool:
    """Whether the loss is below that of one constant, and answers are right no more often than the larger share."""
    right, largest = found.accuracy, last_of(reader, Objective.majority_share)
    varied = series(reader, Inputs.input_std, data="train").finite.values
    if not found.better or right is None or largest is None or not len(varied) or not varied.any():
        return False
    return 1 - largest > ENOUGH and right.value <= largest + max(3 * right.error, 0.01)


def _finding(reader: RunReader, found: Guessing, spread: Series, late: float, n: int) -> Finding:
    steps, right = (int(spread.steps[-n]), int(spread.steps[-1])), found.accuracy
    assert right is not None
    end = "" if found.course is None else f" The loss is {num(found.course.end.value)}, below the "
    end += f"{num(found.chance.loss)} of one constant, by what is usual at each place alone." if end and \
        found.chance.loss is not None else ""  # fmt: skip
    return Finding(
        kind="labels_unrelated",
        severity="warning",
        title="The inputs seem to say nothing about the targets: the answer is almost the same map for every example",
        detail=f"Outputs of different examples differ by {percent(late)} of their size ({between(*steps)}, median of "
        f"{count(n, 'measurement')}), and by no more than before; {percent(right.value)} of the answers are right, "
        f"which always giving the more frequent one is too.{end}",
        advice="Take a batch as the model gets it and look at inputs and masks side by side: listed in another order "
        "(10 before 2), joined by the wrong key, turned or cropped one without the other.",
        evidence=evidence_over(steps, spread.probe, Inputs.output_spread, n, late),
        cause=True,
        explains=["not_learning", "plateau", "majority_guess", "memorised", "not_generalising", "overfitting",
                  "worsening"],
        ruled_out=said(rate_is_right(reader), gradients_arrive(reader)),
        alternatives=["A model that does not get its inputs, or is too small: train it on ten examples alone. If it "
                      "can memorise these, the targets do not belong to their inputs; if not, it is the model."],
        since=int(spread.steps[0]),
    )  # fmt: skip
