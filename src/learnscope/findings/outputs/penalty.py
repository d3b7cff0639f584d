"""A penalty on the weights that is written into the loss and outweighs it: weight decay by another name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Loss, Objective
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.course.chance import guessing, objective_mean
from learnscope.reading.course.loss_course import loss_course
from learnscope.reading.course.movement import moves_of, optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import one_pass
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Penalty:
    """What the logged loss has beside the loss function's own value, as the weights shrink."""

    first: float
    last: float
    weights: tuple[float, float]
    """‖W‖ at the first and the last measured change."""
    share: float
    """Of the logged loss at the start."""
    n: int


def penalty_of(reader: RunReader, cuts: Cuts) -> Penalty | None:
    run = one_pass(reader)
    return run.remember(("penalty", cuts), lambda: _penalty(run, cuts))


def _penalty(reader: RunReader, cuts: Cuts) -> Penalty | None:
    logged, own, moves = loss_course(reader), objective_mean(reader).finite, moves_of(reader)
    if logged is None or moves is None or len(moves) < cuts.measurements or len(optimizers_of(reader)) > 1:
        return None
    _, ours, theirs = np.intersect1d(logged.steps, own.steps, return_indices=True)
    weights = moves.weights[np.isfinite(moves.weights)]
    if len(ours) < cuts.measurements or len(weights) < 2 or weights[-1] > cuts.shrunk_weights * weights[0]:
        return None
    beside = logged.values[ours] - own.values[theirs]
    first, share = float(beside[0]), float(beside[0] / max(abs(logged.values[ours][0]), 1e-300))
    # the other term goes down with the weights, and was most of the loss
    if share < cuts.penalty_share or not 0 <= beside[-1] < cuts.shrunk_weights * first:
        return None
    return Penalty(first, float(beside[-1]), (float(weights[0]), float(weights[-1])), share, len(ours))


@analysis(
    place=14, check="penalty on the weights", needs=[Loss.loss, Objective.objective_mean, ParameterChange.l2]
)  # fmt: skip
def penalty(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found, guessed, moves = penalty_of(reader, cuts), guessing(reader), moves_of(reader)
    if found is None or guessed is None or guessed.better is not False or moves is None:
        return []
    span = int(moves.steps[0]), int(moves.steps[-1])
    return [
        Finding(
            kind="weight_decay_too_strong",
            severity="critical",
            title=f"A penalty in the loss takes the weights away: ‖W‖ went from {num(found.weights[0])} to "
            f"{num(found.weights[1])}",
            detail=f"The logged loss had {num(found.first)} beside what the loss function returned at first, and "
            f"{num(found.last)} in the end ({count(found.n, 'measurement')}): a term that falls as the weights shrink. "
            "The model does no better than guessing.",
            advice="Lower the factor of the penalty on the weights by 10 to 1,000 times: beside the loss of one "
            "target it should be small.",
            evidence=evidence_over(span, moves.probe, ParameterChange.l2, len(moves), found.weights[1]),
            cause=True,
            explains=["not_learning", "plateau", "labels_unrelated", "vanishing", "majority_guess", "zero_gradients",
                      "dead_units"],
            since=span[0],
        )
    ]  # fmt: skip
