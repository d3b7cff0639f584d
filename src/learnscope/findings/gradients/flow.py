"""The gradients of all layers side by side: which are far off the median layer's, for how long, and in words.

A layer is off by its gradient-to-weight ratio ‖g‖/‖W‖ and by ‖g‖ itself, both against the median of the layers that an
optimizer trains. Neither has a unit that matters: the scale of the loss moves all layers alike. Either alone would
accuse healthy layers: a large embedding of which a batch touches a few rows has a small ratio because ‖W‖ is large, a
head that starts at zero has a large one because ‖W‖ is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.findings.evidence import evidence_over, span_of
from learnscope.findings.gradients.steps_taken import untrained
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, grid
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import listed, num
from learnscope.record import Evidence
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Flow:
    """Ratio and norm of every layer's gradient over the steps, and the median layer's."""

    layers: list[str]
    steps: NDArray[np.int64]
    ratio: Floats
    norm: Floats
    median_ratio: Floats
    median_norm: Floats
    probe: str

    def names(self, chosen: Sequence[Streak]) -> list[str]:
        return [self.layers[streak.column] for streak in chosen]


def flow_of(reader: RunReader, cuts: Cuts) -> Flow | None:
    """The layers that an optimizer trains; gradients of others are cleared by nobody and say nothing."""
    ratios = grid(reader, GradientFlow.gradient_to_weight)
    if not ratios:
        return None
    # a clip by the overall norm scales all layers alike, so norms after it compare layers as well
    norm = grid(reader, GradientFlow.norm, stage="stepped").aligned(ratios)
    left_out = untrained(reader)
    kept = [place for place, layer in enumerate(ratios.scopes) if layer not in left_out]
    ratio, norm = ratios.values[:, kept], norm[:, kept]
    median_ratio, median_norm = (_median_layer(values, cuts.min_layers) for values in (ratio, norm))
    layers = [ratios.scopes[place] for place in kept]
    return Flow(layers, ratios.steps, ratio, norm, median_ratio, median_norm, ratios.probe)


def _median_layer(values: Floats, at_least: int) -> Floats:
    """The median at each step over the layers that got a gradient; NaN where these are fewer than `at_least`."""
    present = np.where(values > 0, values, np.nan)
    enough = np.isfinite(present).sum(axis=1) >= at_least
    out = np.full(len(values), np.nan)
    if enough.any():
        out[enough] = np.nanmedian(present[enough], axis=1)
    return out


def off_course(flow: Flow, cuts: Cuts) -> tuple[list[Streak], list[Streak], list[Streak]]:
    """Layers far below the others, layers far above, and those near the output of a gradient that is lost on its way.

    A gradient that shrinks from layer to layer is far below the median at one end and far above it at the other. What
    is off the median next to the output, the sound end, is not reported as exploding (or vanishing) by itself.
    """
    low, high = _below(flow, cuts), _above(flow, cuts)
    last_low = max((s.column for s in low), default=-1)
    if high and min(s.column for s in high) > max(last_low, (len(flow.layers) - 1) / 2):
        return low, [], high
    if high and low and min(s.column for s in low) > max(s.column for s in high):
        return [], high, []
    return low, high, []


def _below(flow: Flow, cuts: Cuts) -> list[Streak]:
    """Not exactly zero, which is another finding."""
    low = (flow.ratio < flow.median_ratio[:, None] / cuts.off_median) & (
        flow.norm < flow.median_norm[:, None] / cuts.off_median
    )
    return streaks((flow.ratio > 0) & low, flow.ratio >= 0, cuts.measurements)


def _above(flow: Flow, cuts: Cuts) -> list[Streak]:
    high = (flow.ratio > flow.median_ratio[:, None] * cuts.off_median) & (
        flow.norm > flow.median_norm[:, None] * cuts.off_median
    )
    large = streaks(high, flow.ratio >= 0, cuts.measurements)
    return [streak for streak in large if not _growing_from_zero(flow, streak)]


def _growing_from_zero(flow: Flow, streak: Streak) -> bool:
    """The ratio is large because ‖W‖ = ‖g‖/(‖g‖/‖W‖) began near zero and grows, while ‖g‖ does not."""
    norm = flow.norm[streak.rows, streak.column]
    weight = norm / flow.ratio[streak.rows, streak.column]
    return bool(weight[-1] >= 2 * weight[0] and norm[-1] <= 1.5 * norm[0])


def by_depth(flow: Flow, chosen: Sequence[Streak]) -> bool:
    """Whether these are the first layers, and gradients change in one direction from layer to layer: depth's mark."""
    columns = sorted(streak.column for streak in chosen)
    if columns != list(range(len(columns))) or len(flow.layers) < 4:
        return False
    rows = np.unique(np.concatenate([streak.rows for streak in chosen]))
    sizes = np.array([_typical(flow.norm[rows, place]) for place in range(len(flow.layers))])
    known = np.flatnonzero(np.isfinite(sizes))
    if len(known) < 4:
        return False
    order = np.argsort(np.argsort(sizes[known]))  # ranks: Spearman's correlation with the depth
    return abs(float(np.corrcoef(np.arange(len(known)), order)[0, 1])) >= _ONE_DIRECTION


_ONE_DIRECTION = 0.8
"""Spearman's correlation of a layer's place with the size of its gradient, from which it goes in one direction."""


def _typical(values: Floats) -> float:
    positive = values[values > 0]
    return float(np.median(positive)) if len(positive) else np.nan


def evidence_of(flow: Flow, chosen: Sequence[Streak], worst: Streak) -> Evidence:
    span, quantity = span_of(chosen, flow.steps), GradientFlow.gradient_to_weight
    return evidence_over(span, flow.probe, quantity, len(worst.rows), worst.median(flow.ratio))


def how_many(flow: Flow, names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{'all' if len(names) == len(flow.layers) else f'{len(names)} of'} {len(flow.layers)} layers"


def extremes(flow: Flow, chosen: Sequence[Streak], cuts: Cuts) -> str:
    """The ratios, and how far they are from the median layer's; each a median over the layer's streak."""
    lengths = sorted(len(s.rows) for s in chosen)
    n = f"{lengths[0]:,}" if lengths[0] == lengths[-1] else f"{lengths[0]:,} to {lengths[-1]:,}"
    rows = np.unique(np.concatenate([s.rows for s in chosen]))
    middle = flow.median_ratio[rows]
    off = ""
    if np.isfinite(middle).any():
        off = f", {factor(flow, chosen)} the median layer's {num(float(np.nanmedian(middle)))}"
    return (
        f"‖g‖/‖W‖ is {sizes(flow, chosen)} in {listed(flow.names(chosen), cuts.names_listed)}{off} "
        f"({'median' if len(chosen) == 1 else 'medians'} over {n} consecutive measurements)"
    )


def sizes(flow: Flow, chosen: Sequence[Streak]) -> str:
    values = sorted(s.median(flow.ratio) for s in chosen)
    return num(values[0]) if len(values) == 1 else f"{num(values[0])} to {num(values[-1])}"


def factor(flow: Flow, chosen: Sequence[Streak]) -> str:
    """How far the farthest is from the median layer, as a factor."""
    off_median = np.asarray(flow.ratio / flow.median_ratio[:, None], dtype=np.float64)
    factors = sorted(s.median(off_median) for s in chosen)
    far = factors[0] if factors[0] < 1 else factors[-1]
    times = f"{num(1 / far)} times below" if far < 1 else f"{num(far)} times above"
    return times if len(chosen) == 1 else f"up to {times}"
