"""Layers whose gradients vanish or explode.

A layer vanishes or explodes by its gradient-to-weight ratio ‖g‖/‖W‖: beyond an absolute cut, or far from the
median layer. The distance from the median alone would accuse healthy layers: a large embedding of which a batch
touches a few rows has a small ratio because ‖W‖ is large, a head that starts at zero has a large one because ‖W‖ is
small. So it counts only if ‖g‖ itself is as far off, and beyond the upper absolute cut only if it is not just the
weights growing from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over, since, span_of
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, grid, series
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import listed, num
from learnscope.record import Evidence, Finding, Severity
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
    ratios = grid(reader, GradientFlow.gradient_to_weight)
    if not ratios:
        return None
    # a clip by the overall norm scales all layers alike, so norms after it compare layers as well
    norm = grid(reader, GradientFlow.norm, stage="stepped").aligned(ratios)
    median_ratio, median_norm = (_median_layer(values, cuts.min_layers) for values in (ratios.values, norm))
    return Flow(ratios.scopes, ratios.steps, ratios.values, norm, median_ratio, median_norm, ratios.probe)


def _median_layer(values: Floats, at_least: int) -> Floats:
    """The median at each step over the layers that got a gradient; NaN where these are fewer than `at_least`."""
    present = np.where(values > 0, values, np.nan)
    enough = np.isfinite(present).sum(axis=1) >= at_least
    out = np.full(len(values), np.nan)
    if enough.any():
        out[enough] = np.nanmedian(present[enough], axis=1)
    return out


@analysis(
    place=20,
    check="vanishing and exploding gradients",
    needs=[GradientFlow.gradient_to_weight],
    at_least="measurements",
)
def gradients(reader: RunReader, cuts: Cuts) -> list[Finding]:
    flow = flow_of(reader, cuts)
    if flow is None:
        return []
    low, high, upper = off_course(flow, cuts)
    vanishing, exploding = [], []
    for lasting in (True, False):  # what still holds at the end, and what has passed
        some_low, some_high, some_upper = ([s for s in some if s.lasting is lasting] for some in (low, high, upper))
        if some_low:
            vanishing.append(_vanishing_finding(flow, some_low, some_upper, cuts, reader))
        elif some_upper and not low:
            vanishing.append(_lost_finding(flow, some_upper, cuts))
        if some_high:
            exploding.append(_exploding_finding(flow, some_high, cuts))
    return [*vanishing, *exploding]


def off_course(flow: Flow, cuts: Cuts) -> tuple[list[Streak], list[Streak], list[Streak]]:
    """Layers that vanish, layers that explode, and those near the output of a gradient that is lost on its way back.

    A gradient that shrinks from layer to layer is far below the median at one end and far above it at the other. What
    is off the median next to the output, the sound end, is not reported as exploding (or vanishing) by itself.
    """
    low, high = _vanishing(flow, cuts), _exploding(flow, cuts)
    far_low = [s for s in low if s.median(flow.ratio) >= cuts.vanishing_ratio]
    far_high = [s for s in high if s.median(flow.ratio) <= cuts.exploding_ratio]
    last_low = max((s.column for s in low), default=-1)
    if far_high and min(s.column for s in far_high) > max(last_low, (len(flow.layers) - 1) / 2):
        return low, [s for s in high if s not in far_high], far_high
    if high and far_low and min(s.column for s in far_low) > max(s.column for s in high):
        return [s for s in low if s not in far_low], high, []
    return low, high, []


def _vanishing(flow: Flow, cuts: Cuts) -> list[Streak]:
    """Not exactly zero, which is another finding."""
    low = (flow.ratio < flow.median_ratio[:, None] / cuts.off_median) & (
        flow.norm < flow.median_norm[:, None] / cuts.off_median
    )
    return streaks((flow.ratio > 0) & (low | (flow.ratio < cuts.vanishing_ratio)), flow.ratio >= 0, cuts.measurements)


def _exploding(flow: Flow, cuts: Cuts) -> list[Streak]:
    high = (flow.ratio > flow.median_ratio[:, None] * cuts.off_median) & (
        flow.norm > flow.median_norm[:, None] * cuts.off_median
    )
    large = streaks(high | (flow.ratio > cuts.exploding_ratio), flow.ratio >= 0, cuts.measurements)
    return [streak for streak in large if not _growing_from_zero(flow, streak)]


def _growing_from_zero(flow: Flow, streak: Streak) -> bool:
    """The ratio is large because ‖W‖ = ‖g‖/(‖g‖/‖W‖) began near zero and grows, while ‖g‖ does not."""
    norm = flow.norm[streak.rows, streak.column]
    weight = norm / flow.ratio[streak.rows, streak.column]
    return bool(weight[-1] >= 2 * weight[0] and norm[-1] <= 1.5 * norm[0])


def _vanishing_finding(flow: Flow, chosen: list[Streak], upper: list[Streak], cuts: Cuts, reader: RunReader) -> Finding:
    names = flow.names(chosen)
    everywhere = len(names) == len(flow.layers) and all(s.median(flow.ratio) < cuts.vanishing_ratio for s in chosen)
    converged = _converged(reader, cuts) if everywhere else None
    detail = f"{_extremes(flow, chosen, cuts)}."
    if upper:
        high = listed(flow.names(upper), cuts.names_listed)
        detail += f" At the other end it is {_sizes(flow, upper)} in {high}, {_factor(flow, upper)} the median layer's."
    return Finding(
        kind="vanishing_gradients",
        severity="warning" if chosen[0].lasting and converged is None else "info",
        title=f"Gradients vanish in {_how_many(flow, names)} {since(chosen, flow.steps)}",
        detail=detail if converged is None else f"{detail} {converged}",
        advice=_vanishing_advice(flow, chosen, everywhere, converged is not None),
        evidence=_evidence(flow, chosen, min(chosen, key=lambda s: s.median(flow.ratio))),
        scopes=names,
    )


def _lost_finding(flow: Flow, upper: list[Streak], cuts: Cuts) -> Finding:
    """Nothing is far below the median, but the output's end is far above: half of the layers get too little."""
    names = flow.names(upper)
    rest = [layer for layer in flow.layers[: upper[0].column] if layer not in names]
    return Finding(
        kind="vanishing_gradients",
        severity="warning" if upper[0].lasting else "info",
        title=f"Most of the gradient is lost before it reaches {rest[-1] if rest else 'the other layers'} "
        f"{since(upper, flow.steps)}",
        detail=f"At the output's end, {_extremes(flow, upper, cuts)}.",
        advice=f"Look at what lies between {names[0]} and {rest[-1] if rest else 'the layer before it'}: saturating "
        "activations, a small initialisation, or no residual path.",
        evidence=_evidence(flow, upper, max(upper, key=lambda s: s.median(flow.ratio))),
        scopes=names,
    )


def _exploding_finding(flow: Flow, chosen: list[Streak], cuts: Cuts) -> Finding:
    names = flow.names(chosen)
    worst = max(chosen, key=lambda s: s.median(flow.ratio))
    severity: Severity = "warning" if chosen[0].lasting else "info"
    if worst.median(flow.ratio) > cuts.exploding_ratio:  # beyond the absolute cut
        severity = "critical" if chosen[0].lasting else "warning"
    advice = (
        f"Start with {flow.layers[worst.column]}, the farthest off: its initialisation and what is multiplied there. "
        if len(names) < len(flow.layers)
        else "Every layer is beyond the cut, so the loss's scale comes first: a sum where a mean is meant, or targets "
        "that are not normalised; then the initialisation. "
    )
    return Finding(
        kind="exploding_gradients",
        severity=severity,
        title=f"Gradients explode in {_how_many(flow, names)} {since(chosen, flow.steps)}",
        detail=f"{_extremes(flow, chosen, cuts)}.",
        advice=advice + "Clipping bounds the step but leaves the imbalance between layers.",
        evidence=_evidence(flow, chosen, worst),
        scopes=names,
    )


def _evidence(flow: Flow, chosen: Sequence[Streak], worst: Streak) -> Evidence:
    span, quantity = span_of(chosen, flow.steps), GradientFlow.gradient_to_weight
    return evidence_over(span, flow.probe, quantity, len(worst.rows), worst.median(flow.ratio))


def _vanishing_advice(flow: Flow, chosen: Sequence[Streak], everywhere: bool, converged: bool) -> str:
    if converged:
        return "Nothing to do if training is meant to end here."
    if everywhere:
        return (
            "Every layer is affected, so look at the loss first: a scale that is far too small, outputs that are "
            "detached or saturated, half precision without loss scaling."
        )
    columns = sorted(s.column for s in chosen)
    if columns == list(range(len(columns))):
        after = flow.layers[len(columns)]
        return (
            f"{'It is the first layer' if len(columns) == 1 else f'They are the first {len(columns)} layers'}, before "
            f"{after}: the gradient is lost on its way back. "
            "Residual connections, normalisation, a larger initialisation or non-saturating activations keep it."
        )
    who = "This is not the layer" if len(columns) == 1 else "These are not the layers"
    return (
        f"{who} farthest from the output, so depth alone does not explain it: look at the branch of "
        f"{flow.layers[columns[0]]}, at what scales its output, and at gates that are closed."
    )


def _converged(reader: RunReader, cuts: Cuts) -> str | None:
    """A sentence on a loss that is almost gone: its first and last values, each a median of five."""
    loss = series(reader, Loss.loss).finite
    if len(loss) < 10:
        return None
    first, last = float(np.median(loss.values[:5])), float(np.median(loss.values[-5:]))
    if not 0 <= last < cuts.converged_share * first:
        return None
    return f"The loss went from {num(first)} to {num(last)} (medians of the first and last 5 of {len(loss):,} values)."


def _how_many(flow: Flow, names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{'all' if len(names) == len(flow.layers) else f'{len(names)} of'} {len(flow.layers)} layers"


def _extremes(flow: Flow, chosen: Sequence[Streak], cuts: Cuts) -> str:
    """The ratios, and how far they are from the median layer's; each a median over the layer's streak."""
    lengths = sorted(len(s.rows) for s in chosen)
    n = f"{lengths[0]:,}" if lengths[0] == lengths[-1] else f"{lengths[0]:,} to {lengths[-1]:,}"
    rows = np.unique(np.concatenate([s.rows for s in chosen]))
    middle = flow.median_ratio[rows]
    off = ""
    if np.isfinite(middle).any():
        off = f", {_factor(flow, chosen)} the median layer's {num(float(np.nanmedian(middle)))}"
    return (
        f"‖g‖/‖W‖ is {_sizes(flow, chosen)} in {listed(flow.names(chosen), cuts.names_listed)}{off} "
        f"({'median' if len(chosen) == 1 else 'medians'} over {n} consecutive measurements)"
    )


def _sizes(flow: Flow, chosen: Sequence[Streak]) -> str:
    values = sorted(s.median(flow.ratio) for s in chosen)
    return num(values[0]) if len(values) == 1 else f"{num(values[0])} to {num(values[-1])}"


def _factor(flow: Flow, chosen: Sequence[Streak]) -> str:
    """How far the farthest is from the median layer, as a factor."""
    off_median = np.asarray(flow.ratio / flow.median_ratio[:, None], dtype=np.float64)
    factors = sorted(s.median(off_median) for s in chosen)
    far = factors[0] if factors[0] < 1 else factors[-1]
    times = f"{num(1 / far)} times below" if far < 1 else f"{num(far)} times above"
    return times if len(chosen) == 1 else f"up to {times}"
