"""One of several optimizers whose gradient goes while the others' does not: a player that has nothing to learn from."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.course.movement import optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Grid, grid
from learnscope.reading.words import between, count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader


def one_optimizer(reader: RunReader) -> str | None:
    return None if len(optimizers_of(reader)) > 1 else "for loops with several optimizers"


@analysis(
    place=36, check="gradients of each optimizer", needs=[GradientFlow.norm], at_least="vanishing_measurements",
    unless=one_optimizer,
)  # fmt: skip
def starved_players(reader: RunReader, cuts: Cuts) -> list[Finding]:
    if len(optimizers_of(reader)) < 2:
        return []
    norms = grid(reader, GradientFlow.norm, kind="group", stage="stepped")
    n = len(norms.steps) // 3
    if not norms or n < cuts.measurements or len(norms.scopes) < 2:
        return []
    early, late = _medians(norms.values[:n]), _medians(norms.values[-n:])
    left = np.where(early > 0, late / np.where(early > 0, early, 1.0), np.nan)
    gone, kept = left < cuts.starved_player, left >= 10 * cuts.starved_player
    if not gone.any() or not kept.any():
        return []
    return [
        _finding(norms, place, float(early[place]), float(late[place]), n, cuts)
        for place in np.flatnonzero(gone).tolist()
    ]


def _medians(values: Floats) -> Floats:
    """By column; NaN where nothing is finite: no gradient at all, or one that broke, is another matter."""
    columns = [column[np.isfinite(column)] for column in values.T]
    return np.array([float(np.median(column)) if len(column) else np.nan for column in columns])


def _finding(norms: Grid, place: int, early: float, late: float, n: int, cuts: Cuts) -> Finding:
    name, values = norms.scopes[place], norms.values[:, place]
    above = np.flatnonzero(values >= cuts.starved_player * early)
    since = int(norms.steps[min(int(above[-1]) + 1, len(values) - 1)])
    steps = int(norms.steps[-n]), int(norms.steps[-1])
    return Finding(
        kind="vanishing",
        severity="warning",
        title=f"The gradient of {name} has gone: {num(late)}, from {num(early)}",
        detail=f"‖g‖ of what this optimizer trains was {num(early)} in the first third and {num(late)} in the last "
        f"(medians of {count(n, 'measurement')}, {between(*steps)}), while that of another optimizer stayed. Its loss "
        "is flat where it stands: one side has won, or what joins the two passes nothing on.",
        advice="Use a loss that is not flat where the other side is sure (−log D(G(z)) in place of log(1 − D(G(z)))), "
        "slow the other side down, or look for a detach() or a saturated activation between the two.",
        evidence=evidence_over(steps, norms.probe, GradientFlow.norm, n, late),
        scopes=[name],
        cause=True,
        explains=["zero_gradients", "not_moving", "plateau", "updates_absorbed"],
        since=since,
    )
