"""Trainings that break within their first steps."""

from __future__ import annotations

import math

import pytest

from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.findings.updates.broke_at_once import broke_at_once
from learnscope.record import Column, Table


def made(losses: list[float], *, update: float = 0.5, entropy: float | None = None) -> MadeRun:
    run = MadeRun(layers=["a"])
    run.change((0, 1), {"a.weight": 1.0}, layers={"a": update})
    moved = [Column("update_to_weight", [update])]
    run.write("ParameterChange", 1, [Table("model", ["model"], moved)], notes={"span": [0, 1]})
    for step, value in enumerate([*losses, *[math.nan] * 30], 1):
        run.loss(step, value)
    if entropy is not None:
        label = {"function": "cross_entropy"}
        columns = [Column("objective_mean", [losses[0]], label), Column("target_entropy", [entropy])]
        columns += [Column("majority_share", [0.1]), Column("objective_value", [losses[0]], label)]
        run.write("Objective", 1, [Table("model", ["model"], columns)])
    return run


@pytest.mark.parametrize(
    ("first", "entropy", "kind"),
    [
        (2.3, 2.3, "learning_rate_too_high"),
        (2.3, None, "learning_rate_too_high"),
        (48.0, 2.3, "exploding_initialisation"),
    ],
)
def test_the_first_losses_say_why(first: float, entropy: float | None, kind: str) -> None:
    run = made([first, 200 * first, 1e9 * first], entropy=entropy)
    [finding] = broke_at_once(run.reader, Cuts())
    assert (finding.kind, finding.severity, finding.cause, finding.since) == (kind, "critical", True, 2)
    assert "in 3 steps and was not finite from step 4 on" in finding.detail
    assert bool(finding.alternatives) is (entropy is None)  # whether the start was wild is not known
    assert finding.evidence.value == pytest.approx(1e9)
    told = find(run.reader)[0]
    assert (told.kind, "nonfinite" in [inside.kind for inside in told.taken_in]) == (kind, True)


@pytest.mark.parametrize(
    "run",
    [
        made([2.0, 1.9, 1.8]),  # one bad batch: it had not grown
        made([2.0, 400.0, 1e9], update=1e-3),  # steps of normal size
        made([2.0]),  # a first step from which nothing is told
        made([2.0 * 1.3**step for step in range(25)]),  # long enough for the course of the loss
    ],
)
def test_what_has_another_reason(run: MadeRun) -> None:
    assert broke_at_once(run.reader, Cuts()) == []


def test_a_finite_run() -> None:
    run = MadeRun()
    for step in range(1, 9):
        run.loss(step, 10.0**step)
    assert broke_at_once(run.reader, Cuts()) == []
