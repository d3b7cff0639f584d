"""Grokking: found on the run that groks, and on no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import learnscope as ls
from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.record import Column, Finding, Table

Curve = Callable[[int], float]
EVERY = 10


def rise(start: int, end: int, low: float, high: float) -> Curve:
    """Flat, a straight line between two steps, flat."""
    return lambda step: float(np.interp(step, [start, end], [low, high]))


def logged(train: Curve, test: Curve, steps: int = 1500, percent: bool = False) -> MadeRun:
    run = MadeRun()
    generator = np.random.default_rng(0)
    for step in range(1, steps + 1):
        run.model("Loss", step, loss=1.0, train_accuracy=train(step) * (100 if percent else 1))
        if step % EVERY == 0:
            noisy = np.clip(test(step) + 0.01 * generator.standard_normal(), 0, 1)
            run.holdout(step, None, mean=1.0, accuracy=float(noisy))
    return run


def measured(train: Curve, test: Curve, steps: int = 1500) -> MadeRun:
    run = MadeRun()
    for step in range(EVERY, steps + 1, EVERY):
        columns = [Column("accuracy", [train(step), test(step)]), Column("loss", [0.1, 1.0])]
        run.write("Memorization", step, [Table("split", ["train", "test"], columns)], phase="epoch")
    return run


def groks(run: MadeRun, cuts: Cuts | None = None) -> list[Finding]:
    return [finding for finding in find(run.reader, cuts) if finding.kind == "grokking"]


LEARNS_FAST, LATE = rise(0, 100, 0.1, 1.0), rise(900, 1000, 0.1, 1.0)


@pytest.mark.parametrize("make", [logged, measured])
def test_when_it_grokked(make: Callable[..., MadeRun]) -> None:
    [found] = groks(make(LEARNS_FAST, LATE))
    assert found.severity == "info"
    evidence = found.evidence
    # the lines cross 0.99 at step 98.9 and 0.95 at step 994.4; a window's mean is behind by at most one
    assert evidence.first_step in (100, 110)
    assert evidence.last_step in (990, 1000)
    assert evidence.value == evidence.last_step - evidence.first_step
    assert evidence.n == 150
    assert evidence.probe == ("Holdout" if make is logged else "Memorization")
    assert f"generalised from step {evidence.last_step:,}" in found.title
    assert "p = 0.001" in found.detail


def test_percent_is_understood() -> None:
    [found] = groks(logged(LEARNS_FAST, LATE, percent=True))
    assert found.evidence.first_step in (100, 110)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (LEARNS_FAST, lambda step: 0.1),  # never understood
        (LEARNS_FAST, LEARNS_FAST),  # learned together
        (LEARNS_FAST, rise(0, 130, 0.1, 1.0)),  # a little later, without a plateau
        (LEARNS_FAST, rise(100, 1000, 0.1, 1.0)),  # a long straight rise is no plateau
        (LEARNS_FAST, rise(900, 1000, 0.9, 1.0)),  # nearly generalised from the start
        (LEARNS_FAST, rise(900, 1000, 0.1, 0.9)),  # not understood in the end
        (rise(0, 1400, 0.1, 1.0), LATE),  # generalised before it was memorised
        (rise(400, 500, 0.1, 1.0), rise(200, 300, 1.0, 0.1)),  # generalised, and then memorised only
        (lambda step: 0.98, LATE),  # never memorised
        (LEARNS_FAST, lambda step: 1.0 if step in (700, 710) else 0.1),  # not for three measurements
    ],
)
@pytest.mark.parametrize("make", [logged, measured])
def test_what_is_no_grokking(make: Callable[..., MadeRun], train: Curve, test: Curve) -> None:
    assert groks(make(train, test)) == []


def test_a_crossing_must_last() -> None:
    def with_early_luck(step: int) -> float:
        return 1.0 if step in (300, 310) else LATE(step)

    [found] = groks(measured(LEARNS_FAST, with_early_luck))
    assert found.evidence.last_step in (990, 1000)
    assert "plateau until step 910" in found.detail or "plateau until step 920" in found.detail  # luck does not end it
    [early] = groks(measured(LEARNS_FAST, with_early_luck), Cuts(measurements=2))
    assert early.evidence.last_step == 300  # two are enough then


def test_cuts_move_it() -> None:
    run = measured(LEARNS_FAST, rise(900, 1000, 0.1, 0.9))
    [found] = groks(run, Cuts(generalised_accuracy=0.8))
    assert found.evidence.last_step in (980, 990)
    assert groks(run, Cuts(generalised_accuracy=0.8, grokking_gap=0.95)) == []


def test_runs_with_too_little() -> None:
    assert groks(MadeRun()) == []
    only = MadeRun()
    for step in range(1, 50):
        only.model("Loss", step, loss=1.0, train_accuracy=1.0)
    assert groks(only) == []
    null = MadeRun()
    for step in range(10, 500, 10):
        null.write("Memorization", step, [Table("split", ["train", "test"], [Column("accuracy", [None, 0.5])])])
    assert groks(null) == []


def test_modular_addition_groks_and_its_beginning_does_not(grokked: Path) -> None:
    run = ls.open_run(grokked)
    [found] = [finding for finding in run.findings() if finding.kind == "grokking"]
    held_out = run.frame("Holdout", "holdout_accuracy").sort_values("step")
    crossed = int(held_out["step"][held_out["value"] >= 0.95].iloc[0])
    assert found.evidence.last_step is not None
    assert abs(found.evidence.last_step - crossed) <= 2 * EVERY
    training = run.frame("Loss", "train_accuracy").sort_values("step")
    by_heart = int(training["step"][training["value"] >= 0.99].iloc[0])
    assert found.evidence.first_step is not None
    assert abs(found.evidence.first_step - by_heart) <= 2 * EVERY

    beginning = MadeRun()
    for frame, probe, name in ((training, "Loss", "train_accuracy"), (held_out, "Holdout", "holdout_accuracy")):
        for step, value in zip(frame["step"], frame["value"], strict=True):
            if step <= 600:
                beginning.model(probe, int(step), **{name: float(value)})
    assert groks(beginning) == []
