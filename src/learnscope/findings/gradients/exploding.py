"""Layers whose gradients explode.

No size of a gradient is too large by itself: it has the unit of the loss, and with Adam the step does not depend on it.
A gradient explodes when it leaves its own past by orders of magnitude and stays there, comes in bursts, or grows from
layer to layer on its way back; and when the steps show it: updates are large beside the weights, and the loss does not
fall, or is lost again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.gradients.flow import by_depth, extremes, flow_of, off_course
from learnscope.findings.gradients.steps_taken import lost_again, untrained, updates_of
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.course.loss_course import Course, loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Grid, grid
from learnscope.reading.words import count, listed, num
from learnscope.record import Finding
from learnscope.store.reader import RunReader

PAST = 5
"""Measurements that make a past."""
EXPLAINS = ("nonfinite", "diverging", "loss_spike", "not_learning", "plateau")


@dataclass(frozen=True)
class Explosion:
    """Layers whose gradients are far above what they should be held against."""

    names: list[str]
    since: int
    last: int
    factor: float
    n: int
    how: str
    """The sentence that says so."""
    lasting: bool
    by_past: bool = True
    """Held against its own past, rather than against the other layers."""


@analysis(place=21, check="exploding gradients", needs=[GradientFlow.norm.of("layer")], at_least="measurements")
def exploding(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """At most one finding: growth over the own past, bursts, or growth from layer to layer, in this order."""
    norms, left_out = gradients_before_clipping(reader), untrained(reader)
    if not norms:
        return []
    for explosion in (_grown(norms, left_out, cuts), _bursts(norms, left_out, cuts), _towards_the_input(reader, cuts)):
        if explosion is not None and (finding := _judged(reader, norms, explosion, cuts)) is not None:
            return [finding]
    return []


def gradients_before_clipping(reader: RunReader) -> Grid:
    """Norms of the layers' gradients as backward left them."""
    before = grid(reader, GradientFlow.norm, stage="before_clip")
    return before or grid(reader, GradientFlow.norm, stage="stepped")


def leaves_its_past(values: Floats, growth: float, at_least: int) -> tuple[int, float] | None:
    """The first place from which all values are `growth` times the median of what was before, and that median.

    The past needs `PAST` values, and the growth must last to the end, for at least `at_least` values.

    >>> leaves_its_past(np.array([9, 1, 1, 1, 1, 500, 400, 300.0]), 100, 3)
    (5, 1.0)
    """
    finite = np.flatnonzero(np.isfinite(values))
    known = values[finite]
    past = pd.Series(known).expanding(PAST).median().shift(1).to_numpy(np.float64)
    for place in np.flatnonzero(known > growth * past):
        if len(known) - place >= at_least and (known[place:] > growth * past[place]).all():
            return int(finite[place]), float(past[place])
    return None


def _grown(norms: Grid, left_out: set[str], cuts: Cuts) -> Explosion | None:
    found = {
        layer: left
        for column, layer in enumerate(norms.scopes)
        if layer not in left_out
        and (left := leaves_its_past(norms.values[:, column], cuts.gradient_growth, cuts.measurements)) is not None
    }
    if not found:
        return None
    first = min(row for row, _ in found.values())
    names = list(found)
    factors = {layer: _level(norms.of(layer).values[row:]) / past for layer, (row, past) in found.items() if past}
    worst = max(factors, key=lambda layer: factors[layer], default=names[0])
    most = factors.get(worst, np.inf)
    how = (
        f"Since step {int(norms.steps[first]):,}, in every measurement, the gradient of {worst} is about {num(most)} "
        f"times its own median before; more than {num(cuts.gradient_growth)} times that of "
        f"{listed(names, cuts.names_listed)}."
    )
    n = len(norms.steps) - first
    return Explosion(names, int(norms.steps[first]), int(norms.steps[-1]), most, n, how, lasting=True)


def _level(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else np.nan


def _bursts(norms: Grid, left_out: set[str], cuts: Cuts) -> Explosion | None:
    """Single measurements, again and again, that are far above the layer's own median."""
    known = np.where(np.isfinite(norms.values) & (norms.values > 0), norms.values, np.nan)
    columns = [
        place for place, layer in enumerate(norms.scopes)
        if layer not in left_out and np.isfinite(known[:, place]).sum() >= 2 * PAST
    ]  # fmt: skip
    if not columns:
        return None
    times = known[:, columns] / np.nanmedian(known[:, columns], axis=0)
    high = np.nan_to_num(times) > cuts.gradient_growth
    high[:PAST] = False  # the first steps settle
    often = np.flatnonzero(high.sum(axis=0) >= cuts.measurements)
    if not len(often):
        return None
    names = [norms.scopes[columns[place]] for place in often]
    rows = np.flatnonzero(high[:, often].any(axis=1))
    most = float(np.nanmax(times[:, often]))
    first, last = int(norms.steps[rows[0]]), int(norms.steps[rows[-1]])
    how = (
        f"In {len(rows):,} of {count(len(norms.steps), 'measurement')} the gradient of "
        f"{listed(names, cuts.names_listed)} was more than {num(cuts.gradient_growth)} times its own median, up to "
        f"{num(most)} times."
    )
    return Explosion(names, first, last, most, len(rows), how, lasting=bool(rows[-1] >= len(norms.steps) - PAST))


def _towards_the_input(reader: RunReader, cuts: Cuts) -> Explosion | None:
    flow = flow_of(reader, cuts)
    high = [] if flow is None else off_course(flow, cuts)[1]
    if flow is None or not high or not by_depth(flow, high):
        return None
    worst = max(high, key=lambda streak: streak.median(flow.ratio))
    first, last = int(flow.steps[worst.rows[0]]), int(flow.steps[worst.rows[-1]])
    off = worst.median(np.asarray(flow.ratio / flow.median_ratio[:, None], np.float64))
    how = f"{extremes(flow, high, cuts)}: it grows from layer to layer on its way back."
    return Explosion(flow.names(high), first, last, off, len(worst.rows), how, lasting=worst.lasting, by_past=False)


def _judged(reader: RunReader, norms: Grid, explosion: Explosion, cuts: Cuts) -> Finding | None:
    """A finding only if the loss does not fall, or is not known; a cause only if the updates are large."""
    course, update = loss_course(reader), _largest_update(reader, explosion)
    if course is None and explosion.by_past:
        return None  # a layer that comes alive leaves its past too
    if course is not None and course.improved and not lost_again(course):
        return None
    large = update is not None and update > cuts.large_update
    if update is not None and not large and (course is None or not lost_again(course)):
        return None  # steps of normal size: whatever keeps the loss up, it is not the size of the gradient
    broken = course is not None and lost_again(course)
    return Finding(
        kind="exploding",
        severity="critical" if broken and explosion.lasting else "warning" if explosion.lasting or broken else "info",
        title=f"Gradients explode in {_how_many(norms, explosion.names)} since step {explosion.since:,}",
        detail=" ".join(filter(None, [explosion.how, _of_updates(update), _of_loss(course)])),
        advice=f"Look at {explosion.names[0]} at step {explosion.since:,}: what is multiplied there, how it is "
        "initialised, and the batch. A lower learning rate or clipping bounds the step; normalisation or a smaller "
        "initialisation removes the growth.",
        evidence=evidence_over(
            (explosion.since, explosion.last), norms.probe, GradientFlow.norm, explosion.n, explosion.factor
        ),
        scopes=explosion.names,
        cause=large,
        explains=EXPLAINS if large else (),
        since=explosion.since,
    )


def _how_many(norms: Grid, names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} of {len(norms.scopes)} layers"


def _largest_update(reader: RunReader, explosion: Explosion) -> float | None:
    """The largest ‖Δ‖/‖W‖ of a step of these layers since then; None if not measured."""
    updates = updates_of(reader)
    columns = [] if updates is None else [updates.scopes.index(n) for n in explosion.names if n in updates.scopes]
    if updates is None or not columns:
        return None
    values = updates.values[updates.steps >= explosion.since][:, columns]
    broken = updates.broken[updates.steps >= explosion.since][:, columns]
    if broken.any():
        return float("inf")
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else None


def _of_updates(update: float | None) -> str:
    if update is None:
        return "What the steps did to the weights was not measured (ParameterChange would)."
    return f"A step changed the weights there by up to {num(update)} of their size."


def _of_loss(course: Course | None) -> str:
    if course is None:
        return "Too few losses were recorded to say whether it fell."
    if course.broken:
        return f"The loss was not finite in {course.broken:,} values."
    start, end, best = (num(level.value) for level in (course.start, course.end, course.best))
    return f"The loss went from {start} to {end}; its best level was {best}."
