"""Layers whose gradients vanish.

A layer's gradient vanishes when it is far below the median trained layer's (see `flow.py`) for many measurements, and
the steps show it: its weights hardly move compared with the others', or the gradient shrinks from layer to layer and
the loss does not fall. With Adam the size of a step does not depend on that of the gradient: a small gradient alone
harms nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from learnscope.findings import analysis
from learnscope.findings.evidence import since, span_of
from learnscope.findings.gradients.flow import (
    Flow,
    by_depth,
    evidence_of,
    extremes,
    factor,
    flow_of,
    how_many,
    off_course,
    sizes,
)
from learnscope.findings.gradients.steps_taken import Updates, learning, updates_against_others
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.cuts import Cuts
from learnscope.reading.streaks import Streak
from learnscope.reading.words import listed
from learnscope.record import Finding
from learnscope.store.reader import RunReader

EXPLAINS = ("not_learning", "plateau", "learning_rate_too_low", "dead_units", "frozen", "not_moving")


@analysis(
    place=20, check="vanishing gradients", needs=[GradientFlow.gradient_to_weight], at_least="vanishing_measurements"
)
def vanishing(reader: RunReader, cuts: Cuts) -> list[Finding]:
    flow = flow_of(reader, cuts)
    if flow is None:
        return []
    low, _, upper = off_course(flow, cuts)
    low, upper = ([s for s in some if len(s.rows) >= cuts.vanishing_measurements] for some in (low, upper))
    found = []
    for lasting in (True, False):  # what still holds at the end, and what has passed
        some_low, some_upper = ([s for s in some if s.lasting is lasting] for some in (low, upper))
        if some_low and _harms(reader, flow, some_low, cuts):
            found.append(_vanishing_finding(reader, flow, some_low, some_upper, cuts))
        elif some_upper and not low and _starves(reader, flow, some_upper, cuts):
            found.append(_lost_finding(flow, some_upper, cuts))
    return found


def _harms(reader: RunReader, flow: Flow, chosen: Sequence[Streak], cuts: Cuts) -> bool:
    updates, learns = updates_against_others(reader, flow.names(chosen)), learning(reader)
    if updates is not None and updates.below >= cuts.small_update:
        return True
    return not learns and (updates is None or by_depth(flow, chosen))


def _starves(reader: RunReader, flow: Flow, upper: Sequence[Streak], cuts: Cuts) -> bool:
    updates = updates_against_others(reader, flow.names(upper))
    return not learning(reader) and (updates is None or 1 / updates.below >= cuts.small_update)


def _vanishing_finding(reader: RunReader, flow: Flow, chosen: list[Streak], upper: list[Streak], cuts: Cuts) -> Finding:
    names = flow.names(chosen)
    updates = updates_against_others(reader, names)
    detail = f"{extremes(flow, chosen, cuts)}."
    if upper:
        high = listed(flow.names(upper), cuts.names_listed)
        detail += f" At the other end it is {sizes(flow, upper)} in {high}, {factor(flow, upper)} the median layer's."
    return Finding(
        kind="vanishing",
        severity="warning" if chosen[0].lasting else "info",
        title=f"Gradients vanish in {how_many(flow, names)} {since(chosen, flow.steps)}",
        detail=f"{detail} {updates.sentence}" if updates is not None else detail,
        advice=_advice(flow, chosen),
        evidence=evidence_of(flow, chosen, min(chosen, key=lambda s: s.median(flow.ratio))),
        scopes=names,
        cause=True,
        explains=EXPLAINS,
        ruled_out=_ruled_out(updates, cuts),
        since=span_of(chosen, flow.steps)[0],
    )


def _ruled_out(updates: Updates | None, cuts: Cuts) -> list[str]:
    if updates is None or updates.below < cuts.small_update:
        return []
    return ["Not the learning rate: the other layers move."]


def _lost_finding(flow: Flow, upper: list[Streak], cuts: Cuts) -> Finding:
    """Nothing is far below the median, but the output's end is far above: half of the layers get too little."""
    names = flow.names(upper)
    rest = [layer for layer in flow.layers[: upper[0].column] if layer not in names]
    return Finding(
        kind="vanishing",
        severity="warning" if upper[0].lasting else "info",
        title=f"Most of the gradient is lost before it reaches {rest[-1] if rest else 'the other layers'} "
        f"{since(upper, flow.steps)}",
        detail=f"At the output's end, {extremes(flow, upper, cuts)}.",
        advice=f"Look at what lies between {names[0]} and {rest[-1] if rest else 'the layer before it'}: saturating "
        "activations, a small initialisation, or no residual path.",
        evidence=evidence_of(flow, upper, max(upper, key=lambda s: s.median(flow.ratio))),
        scopes=names,
        cause=True,
        explains=EXPLAINS,
        since=span_of(upper, flow.steps)[0],
    )


def _advice(flow: Flow, chosen: Sequence[Streak]) -> str:
    columns = sorted(s.column for s in chosen)
    if columns == list(range(len(columns))) and len(columns) < len(flow.layers):
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
