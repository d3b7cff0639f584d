"""A training that was sound until one batch, and is broken from that very step on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.loss_course import FEWEST
from learnscope.reading.course.movement import moves_of, optimizers_of, rates_of_groups, reach_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series, series
from learnscope.reading.lost import rows_told
from learnscope.reading.words import count, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

FAR = 100.0
"""Times all losses, or inputs, before it, from which a single one is of another kind."""
RAISED = 3.0
"""Times the learning rate before it, from which a break is rather due to the rate."""
JUST_BEFORE = 5
"""Losses before the break that must be as usual: steps that are too large show in some of them."""


@dataclass(frozen=True)
class Broken:
    """The step that broke a training."""

    step: int
    value: float | None
    """The loss of its batch; None if that is not finite."""
    level: float
    """Where the loss stood before."""
    inputs: tuple[float, float] | None
    """The largest |input| of that step and the usual one, if it was measured and is far off."""


@analysis(place=12, check="one batch that breaks the training", needs=[Loss.loss], at_least=FEWEST)
def broken_by_batch(reader: RunReader, cuts: Cuts) -> list[Finding]:
    found = batch_that_broke(reader, cuts)
    return [] if found is None else [_finding(reader, found, len(series(reader, Loss.loss)))]


def batch_that_broke(reader: RunReader, cuts: Cuts) -> Broken | None:
    """A loss that was usual, is far above all before within one step, and never comes back.

    The loss of a batch is taken before its own step: if all measured steps before were small, the weights were sound
    when it came.
    """
    loss = series(reader, Loss.loss)
    if len(optimizers_of(reader)) > 1 or len(loss) < FEWEST:
        return None
    place = _first_off(loss)
    if place is None or not _stays(loss, place):
        return None
    step, value = int(loss.steps[place]), float(loss.values[place])
    inputs = _inputs_off(reader, step)
    finite = bool(np.isfinite(value))
    if not _sound_until(reader, loss, step, cuts) or (not finite and inputs is None) or _rate_raised(reader, step):
        return None
    return Broken(step, value if finite else None, float(np.median(loss.values[max(0, place - 20) : place])), inputs)


def _first_off(loss: Series) -> int | None:
    """The first place whose loss is not finite or far above all before, which were usual up to the end."""
    size = np.abs(loss.values)
    highest = np.maximum.accumulate(np.where(np.isfinite(size), size, np.inf))
    off = np.flatnonzero(~np.isfinite(size[1:]) | (size[1:] > FAR * highest[:-1])) + 1
    place = int(off[0]) if len(off) else 0
    if place < FEWEST or loss.values[place] < 0:
        return None
    return place if highest[place - 1] <= highest[place - JUST_BEFORE - 1] else None


def _stays(loss: Series, place: int) -> bool:
    """Whether half of the losses after it are above all before, or not finite."""
    after = np.where(np.isfinite(loss.values[place + 1 :]), loss.values[place + 1 :], np.inf)
    recent = loss.values[max(0, place - 20) : place]
    return len(after) > 0 and float(np.median(after)) > float(recent.max())


def _sound_until(reader: RunReader, loss: Series, step: int, cuts: Cuts) -> bool:
    """Whether the changes of the weights were measured before, and none was too large."""
    moves, reach = moves_of(reader), reach_of(reader)
    if moves is None or reach is None:
        return False
    before = moves.steps < step
    sizes = np.interp(moves.steps[before], loss.finite.steps, np.maximum(np.abs(loss.finite.values), 1e-300))
    if before.sum() < cuts.measurements:
        return False
    return bool(
        (moves.per_step[before] < cuts.large_step).all() and (reach.change[before] < cuts.overshoot * sizes).all()
    )


def _rate_raised(reader: RunReader, step: int) -> bool:
    """Whether a learning rate is far higher at the next measurement than at the last one before: it is the suspect."""
    rates = rates_of_groups(reader)
    before, after = rates.values[rates.steps < step], rates.values[rates.steps >= step]
    return bool(len(before) and len(after) and (after[0] > RAISED * before[-1]).any())


def _inputs_off(reader: RunReader, step: int) -> tuple[float, float] | None:
    largest = series(reader, Inputs.input_max, data="train").finite
    at, before = largest.at(step), largest.values[largest.steps < step]
    if at is None or not len(before) or at < FAR * float(before.max()):
        return None
    return at, float(np.median(before))


def _finding(reader: RunReader, found: Broken, n: int) -> Finding:
    what = "not finite" if found.value is None else num(found.value)
    inputs = (
        ""
        if found.inputs is None
        else f" Its inputs reach {num(found.inputs[0])}, where {num(found.inputs[1])} is usual."
    )
    alternative = (
        "A learning rate that is too high: run up to that step again with another order of the data. If it breaks at "
        "another step, it is the rate; if it breaks with that batch wherever it comes, it is the batch."
    )
    return Finding(
        kind="bad_batch",
        severity="critical",
        title=f"The batch of step {found.step:,} broke the training: a loss of {what} where {num(found.level)} is "
        "usual",
        detail=f"Until then the loss and all measured steps were as usual; that of this batch, taken before its own "
        f"step, is {what}, and the loss never came back ({count(n, 'loss', 'losses')}).{inputs}"
        f"{rows_told(reader, found.step)}",
        advice=f"Look at the examples of step {found.step:,}: values that are not scaled, a file that was read "
        "wrongly, wrong targets. Go on from a checkpoint before it without them. Clipping limits what such a batch can "
        "do.",
        evidence=evidence_over((found.step, found.step), Loss.probe, Loss.loss, n,
                               found.level if found.value is None else found.value),
        cause=True,
        explains=[
            "diverging", "worsening", "loss_spike", "exploding", "nonfinite", "dead_units", "zero_gradients",
            "not_learning", "not_moving", "plateau", "overfitting", "saturated_units", "vanishing", "labels_unrelated",
            "majority_guess", "skipped_steps",
        ],
        since=found.step,
        alternatives=[] if found.inputs is not None else [alternative],
        ruled_out=[]
        if found.inputs is None
        else ["A learning rate that is too high: the inputs of that very batch are unlike all before."],
    )  # fmt: skip
