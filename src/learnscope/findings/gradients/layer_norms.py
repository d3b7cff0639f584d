"""The gradients of every layer over some of the steps of a run: how large, how even, and whether they vanish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learnscope.findings.gradients.flow import Flow, flow_of, off_course
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Grid, Series, grid, series
from learnscope.reading.streaks import Streak
from learnscope.reading.words import count
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Statistics:
    """Statistics of the finite measurements of one number; NaN if there are none."""

    n: int
    not_finite: int
    mean: float
    std: float
    """Unbiased; NaN for fewer than two."""
    min: float
    max: float


@dataclass(frozen=True)
class LayerNorms:
    """Gradients over some steps. `vanishing` and `exploding` are None if there are too few measurements to tell."""

    total: Statistics
    """‖g‖ over all layers that were tracked"""
    loss: Statistics
    norms: dict[str, Statistics]
    ratios: dict[str, Statistics]
    """‖g‖/‖W‖"""
    vanishing: list[str] | None
    exploding: list[str] | None
    reason: str | None
    """Why they are None."""


def layer_norms(reader: RunReader, cuts: Cuts, steps: Sequence[int] | None = None) -> LayerNorms:
    """Statistics of the layers over `steps`, the last ones of the run; over all by default.

    A layer vanishes or explodes in these steps if a long enough streak beyond a cut reaches into them.
    """
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    ratios = grid(reader, GradientFlow.gradient_to_weight)
    chosen_steps = norms.steps.tolist() if steps is None else list(steps)
    flow = flow_of(reader, cuts)
    low: list[str] | None = None
    high: list[str] | None = None
    measured = 0 if flow is None else len(flow.steps)
    reason: str | None = (
        f"{count(measured, 'measurement')} so far, and a layer must be beyond a cut for {cuts.measurements} in a row"
    )
    if flow is not None and measured >= cuts.measurements:
        below, above, _ = off_course(flow, cuts)
        low, high, reason = _touching(flow, below, chosen_steps), _touching(flow, above, chosen_steps), None
    return LayerNorms(
        _over(series(reader, GradientFlow.norm, stage="stepped"), chosen_steps),
        _over(series(reader, Loss.loss), chosen_steps),
        _by_layer(norms, chosen_steps),
        _by_layer(ratios, chosen_steps),
        low,
        high,
        reason,
    )


def statistics(values: Floats, not_finite: int = 0) -> Statistics:
    """
    >>> statistics(np.array([1.0, 3.0]))
    Statistics(n=2, not_finite=0, mean=2.0, std=1.4142135623730951, min=1.0, max=3.0)
    """
    finite = values[np.isfinite(values)]
    n = len(finite)
    if not n:
        return Statistics(0, not_finite, np.nan, np.nan, np.nan, np.nan)
    std = float(finite.std(ddof=1)) if n > 1 else np.nan
    return Statistics(n, not_finite, float(finite.mean()), std, float(finite.min()), float(finite.max()))


def _over(numbers: Series, chosen_steps: list[int]) -> Statistics:
    chosen = np.isin(numbers.steps, chosen_steps)
    return statistics(numbers.values[chosen], int(np.isin(numbers.steps[chosen], numbers.broken).sum()))


def _by_layer(numbers: Grid, chosen_steps: list[int]) -> dict[str, Statistics]:
    chosen = np.isin(numbers.steps, chosen_steps)
    values, bad = numbers.values[chosen], numbers.broken[chosen].sum(axis=0)
    return {layer: statistics(values[:, i], int(bad[i])) for i, layer in enumerate(numbers.scopes)}


def _touching(flow: Flow, streaks: Sequence[Streak], chosen_steps: list[int]) -> list[str]:
    """The layers whose streaks have a measurement at one of these steps."""
    touching = [streak for streak in streaks if np.isin(flow.steps[streak.rows], chosen_steps).any()]
    return flow.names(sorted(touching, key=lambda streak: streak.column))
