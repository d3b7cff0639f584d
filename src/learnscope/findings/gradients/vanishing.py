"""Layers whose gradients vanish or explode.

A layer vanishes or explodes by its gradient-to-weight ratio ‖g‖/‖W‖: beyond an absolute cut, or far off the
median layer. Off the median alone would accuse healthy layers: a large embedding of which a batch touches a
few rows has a small ratio because ‖W‖ is large, a head that starts at zero has a large one because ‖W‖ is
small. So off the median counts only if ‖g‖ itself is as far off, and beyond the upper absolute cut only if it
is not just the weights growing up from zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learnscope.findings.gradients.flow import Flow, extremes, flow_of, how_many, other_end, since
from learnscope.findings.registry import analysis
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import series
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import num
from learnscope.record import Evidence, Finding, Severity
from learnscope.store.reader import RunReader


@analysis(place=20)
def gradients(reader: RunReader, cuts: Cuts) -> list[Finding]:
    flow = flow_of(reader, cuts)
    if flow is None:
        return []
    low, high, lost = off_course(flow, cuts)
    found = _split(flow, low, lost, cuts, reader)
    for lasting in (True, False):
        some = [streak for streak in high if streak.lasting is lasting]
        found += [_exploding_finding(flow, some, cuts)] if some else []
    return found


def off_course(flow: Flow, cuts: Cuts) -> tuple[list[Streak], list[Streak], list[Streak]]:
    """The layers that vanish, those that explode, and those at the upper end of a gradient that is lost on its way."""
    return _one_story(flow, _vanishing(flow, cuts), _exploding(flow, cuts), cuts)


def _vanishing(flow: Flow, cuts: Cuts) -> list[Streak]:
    """Not exactly zero, which is a statement of its own."""
    low = (flow.ratio < flow.median_ratio[:, None] / cuts.off_median) & (
        flow.norm < flow.median_norm[:, None] / cuts.off_median
    )
    return streaks((flow.ratio > 0) & (low | (flow.ratio < cuts.vanishing_ratio)), flow.ratio >= 0, cuts.measurements)


def _exploding(flow: Flow, cuts: Cuts) -> list[Streak]:
    high = (flow.ratio > flow.median_ratio[:, None] * cuts.off_median) & (
        flow.norm > flow.median_norm[:, None] * cuts.off_median
    )
    found = streaks(high | (flow.ratio > cuts.exploding_ratio), flow.ratio >= 0, cuts.measurements)
    return [streak for streak in found if not _growing_from_zero(flow, streak)]


def _growing_from_zero(flow: Flow, streak: Streak) -> bool:
    """The ratio is large because ‖W‖ = ‖g‖/(‖g‖/‖W‖) began near zero and grows, while ‖g‖ does not."""
    norm = flow.norm[streak.rows, streak.column]
    weight = norm / flow.ratio[streak.rows, streak.column]
    return bool(weight[-1] >= 2 * weight[0] and norm[-1] <= 1.5 * norm[0])


def _one_story(
    flow: Flow, low: list[Streak], high: list[Streak], cuts: Cuts
) -> tuple[list[Streak], list[Streak], list[Streak]]:
    """A gradient that shrinks from layer to layer is far below the median at one end and far above at the other.

    The layer next to the output is the sound end: what is off the median there is not reported as exploding
    (or vanishing) of its own. Returns vanishing, exploding, and the upper end of a gradient that is lost.
    """
    far_low = [s for s in low if s.median(flow.ratio) >= cuts.vanishing_ratio]
    far_high = [s for s in high if s.median(flow.ratio) <= cuts.exploding_ratio]
    others_low = max((s.column for s in low), default=-1)
    if far_high and min(s.column for s in far_high) > max(others_low, (len(flow.layers) - 1) / 2):
        return low, [s for s in high if s not in far_high], far_high
    others_high = max((s.column for s in high), default=-1)
    if high and far_low and min(s.column for s in far_low) > others_high:
        return [s for s in low if s not in far_low], high, []
    return low, high, []


def _split(flow: Flow, low: list[Streak], lost: list[Streak], cuts: Cuts, reader: RunReader) -> list[Finding]:
    """One finding for what still holds at the end, one for what has passed."""
    found = []
    for lasting in (True, False):
        some = [s for s in low if s.lasting is lasting]
        upper = [s for s in lost if s.lasting is lasting]
        if some:
            found.append(_vanishing_finding(flow, some, upper, cuts, reader))
        elif upper and not low:
            found.append(_lost_finding(flow, upper, cuts))
    return found


def _vanishing_finding(flow: Flow, chosen: list[Streak], upper: list[Streak], cuts: Cuts, reader: RunReader) -> Finding:
    names = flow.names(chosen)
    lasting = chosen[0].lasting
    everywhere = len(names) == len(flow.layers) and all(s.median(flow.ratio) < cuts.vanishing_ratio for s in chosen)
    converged = _converged(reader, cuts) if everywhere else None
    severity: Severity = "warning" if lasting and converged is None else "info"
    worst = min(chosen, key=lambda s: s.median(flow.ratio))
    also = f" {other_end(flow, upper, cuts)}" if upper else ""
    if converged is not None:
        also += f" {converged}"
    return Finding(
        kind="vanishing_gradients",
        severity=severity,
        title=f"Gradients vanish in {how_many(flow, names)}{since(flow, chosen)}",
        detail=f"{extremes(flow, chosen, cuts)}.{also}",
        advice=_vanishing_advice(flow, chosen, everywhere, converged is not None),
        evidence=_evidence(flow, chosen, worst),
        scopes=names,
    )


def _lost_finding(flow: Flow, upper: list[Streak], cuts: Cuts) -> Finding:
    """Nothing is far below the median, but the output's end is far above: half of the layers are starved."""
    names = flow.names(upper)
    rest = [layer for layer in flow.layers[: upper[0].column] if layer not in names]
    worst = max(upper, key=lambda s: s.median(flow.ratio))
    return Finding(
        kind="vanishing_gradients",
        severity="warning" if upper[0].lasting else "info",
        title=f"Most of the gradient is lost before it reaches {rest[-1] if rest else 'the other layers'}"
        f"{since(flow, upper)}",
        detail=f"At the output's end, {extremes(flow, upper, cuts)}.",
        advice=f"Look at what lies between {names[0]} and {rest[-1] if rest else 'the layer before it'}: saturating "
        "activations, a small initialisation, or no residual path.",
        evidence=_evidence(flow, upper, worst),
        scopes=names,
    )


def _exploding_finding(flow: Flow, chosen: list[Streak], cuts: Cuts) -> Finding:
    names = flow.names(chosen)
    absolute = [s for s in chosen if s.median(flow.ratio) > cuts.exploding_ratio]
    worst = max(chosen, key=lambda s: s.median(flow.ratio))
    lasting = chosen[0].lasting
    severity: Severity = ("critical" if absolute else "warning") if lasting else ("warning" if absolute else "info")
    first = flow.layers[worst.column]
    advice = (
        f"Start with {first}, the farthest off: its initialisation and what is multiplied there. "
        if len(names) < len(flow.layers)
        else "Every layer is beyond the cut, so the loss's scale comes first: a sum where a mean is meant, or targets "
        "that are not normalised; then the initialisation. "
    )
    return Finding(
        kind="exploding_gradients",
        severity=severity,
        title=f"Gradients explode in {how_many(flow, names)}{since(flow, chosen)}",
        detail=f"{extremes(flow, chosen, cuts)}.",
        advice=advice + "Clipping bounds the step but leaves the imbalance between layers.",
        evidence=_evidence(flow, chosen, worst),
        scopes=names,
    )


def _evidence(flow: Flow, chosen: Sequence[Streak], worst: Streak) -> Evidence:
    return Evidence(
        probe=flow.probe, name=GradientFlow.gradient_to_weight.name, n=len(worst.rows),
        first_step=min(flow.steps[s.rows[0]] for s in chosen), last_step=max(flow.steps[s.rows[-1]] for s in chosen),
        value=worst.median(flow.ratio),
    )  # fmt: skip


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
    """Whether the loss has gone, in numbers: its first and last values, each a median of five."""
    loss = series(reader, Loss.loss).finite
    if len(loss) < 10:
        return None
    first, last = float(np.median(loss.values[:5])), float(np.median(loss.values[-5:]))
    if not 0 <= last < cuts.converged_share * first:
        return None
    return f"The loss went from {num(first)} to {num(last)} (medians of the first and last 5 of {len(loss):,} values)."
