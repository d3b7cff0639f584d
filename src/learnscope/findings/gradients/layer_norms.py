"""The gradients of every layer over some of the steps of a run: how large, how even, and whether they vanish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learnscope.findings.gradients.flow import Flow, flow_of
from learnscope.findings.gradients.vanishing import off_course
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Series, grid, series
from learnscope.reading.streaks import Streak
from learnscope.reading.words import count
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Spread:
    """Some measurements of one number. What is not finite is counted and left out of the rest, which is NaN then."""

    n: int
    not_finite: int
    mean: float
    std: float
    """Unbiased; NaN for fewer than two."""
    min: float
    max: float


@dataclass(frozen=True)
class LayerNorms:
    """Of the steps asked for. `vanishing` and `exploding` are None where there are too few measurements to tell."""

    total: Spread
    """‖g‖ over all layers that were tracked"""
    loss: Spread
    norms: dict[str, Spread]
    ratios: dict[str, Spread]
    """‖g‖/‖W‖"""
    vanishing: list[str] | None
    exploding: list[str] | None
    reason: str | None
    """Why they are None."""


def layer_norms(reader: RunReader, cuts: Cuts, steps: Sequence[int] | None = None) -> LayerNorms:
    """Statistics of the layers over `steps` (all, unless given), which are the last ones of the run.

    A layer vanishes or explodes in these steps if it was beyond a cut for enough consecutive measurements, of which
    one at least is among them: what came before counts, since a part of a run may be short.
    """
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    ratios = grid(reader, GradientFlow.gradient_to_weight)
    wanted = set(norms.steps.tolist() if steps is None else steps)
    chosen = np.isin(norms.steps, list(wanted))
    flow = flow_of(reader, cuts)
    low: list[str] | None = None
    high: list[str] | None = None
    seen = 0 if flow is None else len(flow.steps)
    if flow is not None and seen >= cuts.measurements:
        below, above, _ = off_course(flow, cuts)
        low, high = _touching(flow, below, wanted), _touching(flow, above, wanted)
    reason = f"{count(seen, 'measurement')} so far, and a layer must be beyond a cut for {cuts.measurements} in a row"
    return LayerNorms(
        _over(series(reader, GradientFlow.norm, stage="stepped"), wanted),
        _over(series(reader, Loss.loss), wanted),
        {layer: spread(norms.values[chosen, i], norms.broken[chosen, i]) for i, layer in enumerate(norms.scopes)},
        _ratios(ratios.scopes, ratios.values[np.isin(ratios.steps, list(wanted))]),
        low,
        high,
        None if low is not None else reason,
    )


def spread(values: Floats, broken: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None = None) -> Spread:
    """
    >>> spread(np.array([1.0, 3.0]))
    Spread(n=2, not_finite=0, mean=2.0, std=1.4142135623730951, min=1.0, max=3.0)
    """
    known = values[np.isfinite(values)]
    bad = int(broken.sum()) if broken is not None else 0
    n = len(known)
    if not n:
        return Spread(0, bad, np.nan, np.nan, np.nan, np.nan)
    std = float(known.std(ddof=1)) if n > 1 else np.nan
    return Spread(n, bad, float(known.mean()), std, float(known.min()), float(known.max()))


def _over(numbers: Series, wanted: set[int]) -> Spread:
    chosen = np.isin(numbers.steps, list(wanted))
    return spread(numbers.values[chosen], np.isin(numbers.steps[chosen], numbers.broken))


def _ratios(layers: Sequence[str], values: Floats) -> dict[str, Spread]:
    return {layer: spread(values[:, i]) for i, layer in enumerate(layers)}


def _touching(flow: Flow, found: Sequence[Streak], wanted: set[int]) -> list[str]:
    there = [streak for streak in found if any(flow.steps[row] in wanted for row in streak.rows.tolist())]
    return flow.names(sorted(there, key=lambda streak: streak.column))
