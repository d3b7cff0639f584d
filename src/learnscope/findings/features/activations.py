"""Layers in which most units are dead or saturated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over, since, span_of
from learnscope.quantities import Quantity
from learnscope.quantities.features import Activations
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid, labels_of
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import count, listed, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader


@analysis(place=80, check="dead and saturated units", needs=[Activations.dead_share], at_least="measurements")
def activations(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """One finding for what still holds at the end and one for what has passed, of each kind."""
    dead = grid(reader, Activations.dead_share)
    saturated = grid(reader, Activations.saturated_share)
    if not dead:
        return []
    long_dead = streaks(dead.values > cuts.dead_share, np.isfinite(dead.values), cuts.measurements)
    flat = streaks(saturated.values > cuts.saturated_share, np.isfinite(saturated.values), cuts.measurements)
    findings = []
    for lasting in (True, False):
        chosen = [streak for streak in long_dead if streak.lasting is lasting]
        named = {_name(dead, streak) for streak in chosen}
        # a dead ReLU is flat everywhere: not the same units once more
        others = [s for s in flat if s.lasting is lasting and _name(saturated, s) not in named]
        findings += [_dead(dead, chosen, reader, cuts)] if chosen else []
        findings += [_saturated(saturated, others, dead, reader, cuts)] if others else []
    return findings


def _dead(shares: Grid, chosen: list[Streak], reader: RunReader, cuts: Cuts) -> Finding:
    closed = [_name(shares, streak) for streak in chosen if streak.median(shares.values) == 1]
    through = f" Nothing passes through the activations of {listed(closed, cuts.names_listed)}." if closed else ""
    return Finding(
        kind="dead_units",
        severity="info" if not chosen[0].lasting else "critical" if closed else "warning",
        detail=f"{_sizes('dead', shares, chosen, reader, cuts)}{through}",
        advice="A ReLU whose output is 0 for every input gets no gradient and does not come back by itself. Look at "
        f"the biases and the scale of what goes into {_name(shares, _worst(shares, chosen))}, and at the learning rate "
        "when it began (a warm-up, a lower peak); an activation with a slope below 0 as well, such as LeakyReLU, keeps "
        "a gradient.",
        **_common(Activations.dead_share, "dead", shares, chosen),
    )


def _saturated(shares: Grid, chosen: list[Streak], dead: Grid, reader: RunReader, cuts: Cuts) -> Finding:
    worst = _worst(shares, chosen)
    dead_share = worst.median(dead.aligned(shares))
    of_them = f" In {_name(shares, worst)}, {percent(dead_share)} of the units are dead." if dead_share > 0 else ""
    return Finding(
        kind="saturated_units",
        severity="warning" if chosen[0].lasting else "info",
        detail=f"{_sizes('saturated', shares, chosen, reader, cuts)} Their slope is below 1 % of the steepest for more "
        f"than 95 % of the inputs.{of_them}",
        advice="Next to no gradient passes a saturated tanh or sigmoid: normalise what goes into "
        f"{_name(shares, worst)}, or give it smaller weights or a lower learning rate. A saturated ReLU or GELU is a "
        "unit that fires for fewer than 5 % of the inputs: sparse, and no harm while the loss falls.",
        **_common(Activations.saturated_share, "saturated", shares, chosen),
    )


def _name(shares: Grid, streak: Streak) -> str:
    return shares.scopes[streak.column]


def _worst(shares: Grid, chosen: Sequence[Streak]) -> Streak:
    return max(chosen, key=lambda streak: streak.median(shares.values))


def _common(quantity: Quantity, what: str, shares: Grid, chosen: Sequence[Streak]) -> dict[str, Any]:
    worst = _worst(shares, chosen)
    value = worst.median(shares.values)
    evidence = evidence_over(span_of(chosen, shares.steps), shares.probe, quantity, len(worst.rows), value)
    when = since(chosen, shares.steps)
    n, total = len(chosen), len(shares.scopes)
    layers = f"all {n} layers" if n == total else f"{n} of {total} layers"
    title = f"Up to {percent(value)} of the units {what} in {layers} {when}"
    if n == 1:
        title = f"{percent(value)} of the units in {_name(shares, worst)} {what} {when}"
    return {"title": title, "evidence": evidence, "scopes": [_name(shares, streak) for streak in chosen]}


def _sizes(what: str, shares: Grid, chosen: Sequence[Streak], reader: RunReader, cuts: Cuts) -> str:
    values = sorted(streak.median(shares.values) for streak in chosen)
    lengths = sorted(len(streak.rows) for streak in chosen)
    n = f"{lengths[0]:,}" if lengths[0] == lengths[-1] else f"{lengths[0]:,} to {lengths[-1]:,}"
    units = grid(reader, Activations.units).aligned(shares)
    entries = int(sum(streak.median(units) for streak in chosen))
    size = " to ".join(dict.fromkeys([percent(values[0]), percent(values[-1])]))
    names = listed([_name(shares, streak) for streak in chosen], cuts.names_listed)
    have, median = ("has", "median") if len(chosen) == 1 else ("have", "medians")
    records = [record for label in labels_of(reader, Activations) for record in reader.records(label)]
    noted = [int(record.notes.get("examples") or 0) for record in records if not record.error]
    on = f", on {count(noted[-1], 'example')} each" if noted and noted[-1] else ""
    return (
        f"The share of {what} units is {size} in {names}, which {have} {count(entries, 'unit')} "
        f"({median} over {n} consecutive measurements{on})."
    )
