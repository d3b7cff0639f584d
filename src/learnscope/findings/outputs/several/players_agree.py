"""Two players who should work against each other, and both win: one of them is told the other's answers."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Objective
from learnscope.reading.course.chance import main_function, objective_mean
from learnscope.reading.course.movement import optimizers_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import grid, series
from learnscope.reading.words import between, count, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

CALLS = 3
"""Answers that one step of two players asks for: of true ones, of made ones, and again of made ones."""
AGREE = 0.2
"""Mean loss of these, below which nobody works against anybody: with opposite answers for the same made ones it is at
least 2/3 · ln 2 = 0.46."""
MOSTLY_FALSE = 0.4
"""Share of the answers that are yes, below which made ones are false for both players."""


@analysis(place=10, check="players against each other", needs=[Objective.objective_calls, Objective.majority_share],
          at_least="measurements")  # fmt: skip
def players_agree(reader: RunReader, cuts: Cuts) -> list[Finding]:
    function, losses = main_function(reader), objective_mean(reader).finite
    calls = series(reader, Objective.objective_calls, function=function).finite.values
    shares, n = series(reader, Objective.majority_share).finite.values, len(losses) // 3
    if len(optimizers_of(reader)) < 2 or not function.startswith("binary") or n < cuts.measurements:
        return []
    # each call has one answer for all its examples, so that the shares are the same at every step
    fixed = len(shares) > 0 and np.ptp(shares) < 1e-6
    yes = _share_of_yes(reader)
    if not fixed or not len(calls) or np.median(calls) < CALLS or yes is None or not 0 < yes < MOSTLY_FALSE:
        return []
    start, end = float(losses.values[0]), float(np.median(losses.values[-n:]))
    if end > AGREE or start < 2 * AGREE:
        return []
    steps = int(losses.steps[0]), int(losses.steps[-1])
    return [
        Finding(
            kind="loss_maximised",
            severity="warning",
            title="Both players win: what is made is false for the one that makes it as for the one that judges it",
            detail=f"{function} is called {num(float(np.median(calls)))} times a step with one answer for all examples "
            f"of a call, and {percent(yes)} of the answers are yes. Its mean went from {num(start)} to {num(end)} "
            f"({count(len(losses), 'measurement')}, {between(*steps)}). Where the same made examples are to be true "
            "for one player and false for the other, it cannot fall below 0.46.",
            advice="Give the maker's loss the label of true examples (ones): it learns to be taken for true, and is "
            "told here to be found out.",
            evidence=evidence_over(steps, losses.probe, Objective.objective_mean, len(losses), end),
            cause=True,
            explains=[
                "zero_gradients",
                "vanishing",
                "not_moving",
                "plateau",
                "embedding_collapse",
                "player_too_strong",
            ],
            since=steps[0],
        )
    ]


def _share_of_yes(reader: RunReader) -> float | None:
    shares = grid(reader, Objective.target_share, kind="class")
    return float(shares.of("1").values[-1]) if shares and "1" in shares.scopes else None
