"""Layers in which most units are dead or saturated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learnscope.findings.registry import analysis
from learnscope.quantities import Quantity
from learnscope.quantities.features import Activations
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid, labels_of
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import between, count, listed, percent
from learnscope.record import Evidence, Finding, Severity
from learnscope.store.reader import RunReader


@analysis(place=80)
def activations(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """One finding for what still holds at the end and one for what has passed, of each kind."""
    dead = grid(reader, Activations.dead_share)
    saturated = grid(reader, Activations.saturated_share)
    if not dead:
        return []
    dying = streaks(dead.values > cuts.dead_share, np.isfinite(dead.values), cuts.measurements)
    flat = streaks(saturated.values > cuts.saturated_share, np.isfinite(saturated.values), cuts.measurements)
    found = []
    for lasting in (True, False):
        ours = [streak for streak in dying if streak.lasting is lasting]
        said = {dead.scopes[streak.column] for streak in ours}
        # a dead ReLU is flat everywhere: not the same units once more
        others = [s for s in flat if s.lasting is lasting and saturated.scopes[s.column] not in said]
        found += [_dead(dead, ours, reader, cuts)] if ours else []
        found += [_saturated(saturated, others, dead, reader, cuts)] if others else []
    return found


def _dead(shares: Grid, chosen: list[Streak], reader: RunReader, cuts: Cuts) -> Finding:
    worst = max(chosen, key=lambda streak: streak.median(shares.values))
    whole = [_name(shares, s) for s in chosen if s.median(shares.values) == 1]
    severity: Severity = "critical" if whole else "warning"
    through = f" Nothing passes through the activations of {listed(whole, cuts.names_listed)}." if whole else ""
    return Finding(
        kind="dead_units",
        severity=severity if chosen[0].lasting else "info",
        title=_title("dead", shares, chosen, worst),
        detail=f"{_sizes('dead', shares, chosen, reader, cuts)}{through}",
        advice="A ReLU whose output is 0 for every input gets no gradient and does not come back by itself. Look at "
        f"the biases and the scale of what goes into {_name(shares, worst)}, and at the learning rate when it began (a "
        "warm-up, a lower peak); an activation with a slope below 0 as well, such as LeakyReLU, keeps a gradient.",
        evidence=_evidence(Activations.dead_share, shares, chosen, worst),
        scopes=[_name(shares, streak) for streak in chosen],
    )


def _saturated(shares: Grid, chosen: list[Streak], dead: Grid, reader: RunReader, cuts: Cuts) -> Finding:
    worst = max(chosen, key=lambda streak: streak.median(shares.values))
    gone = worst.median(dead.aligned(shares))
    of_them = f" In {_name(shares, worst)}, {percent(gone)} of the units are dead." if gone > 0 else ""
    return Finding(
        kind="saturated_units",
        severity="warning" if chosen[0].lasting else "info",
        title=_title("saturated", shares, chosen, worst),
        detail=f"{_sizes('saturated', shares, chosen, reader, cuts)} Their slope is below 1 % of the steepest for more "
        f"than 95 % of the inputs.{of_them}",
        advice="Next to no gradient passes a saturated tanh or sigmoid: normalise what goes into "
        f"{_name(shares, worst)}, or give it smaller weights or a lower learning rate. A saturated ReLU or GELU is a "
        "unit that fires for fewer than 5 % of the inputs: sparse, and no harm while the loss falls.",
        evidence=_evidence(Activations.saturated_share, shares, chosen, worst),
        scopes=[_name(shares, streak) for streak in chosen],
    )


def _name(shares: Grid, streak: Streak) -> str:
    return shares.scopes[streak.column]


def _title(what: str, shares: Grid, chosen: Sequence[Streak], worst: Streak) -> str:
    share = percent(worst.median(shares.values))
    first, last = _span(shares, chosen)
    when = f"since step {first:,}" if chosen[0].lasting else f"in {between(first, last)}, not after"
    if len(chosen) == 1:
        return f"{share} of the units in {_name(shares, worst)} {what} {when}"
    every = len(shares.scopes)
    where = f"all {every}" if len(chosen) == every else f"{len(chosen)} of {every}"
    return f"Up to {share} of the units {what} in {where} layers {when}"


def _sizes(what: str, shares: Grid, chosen: Sequence[Streak], reader: RunReader, cuts: Cuts) -> str:
    """How large the shares are and what they were measured on."""
    values = sorted(streak.median(shares.values) for streak in chosen)
    lengths = sorted(len(streak.rows) for streak in chosen)
    n = f"{lengths[0]:,}" if lengths[0] == lengths[-1] else f"{lengths[0]:,} to {lengths[-1]:,}"
    units = grid(reader, Activations.units).aligned(shares)
    entries = int(sum(streak.median(units) for streak in chosen))
    size = " to ".join(dict.fromkeys([percent(values[0]), percent(values[-1])]))
    names = listed([_name(shares, streak) for streak in chosen], cuts.names_listed)
    have, median = ("has", "median") if len(chosen) == 1 else ("have", "medians")
    examples = _examples(reader)
    on = f", on {count(examples, 'example')} each" if examples else ""
    return (
        f"The share of {what} units is {size} in {names}, which {have} {count(entries, 'unit')} "
        f"({median} over {n} consecutive measurements{on})."
    )


def _examples(reader: RunReader) -> int:
    """On how many examples the last measurement rests; 0 if it does not say."""
    noted = [
        int(record.notes.get("examples") or 0)
        for label in labels_of(reader, Activations)
        for record in reader.records(label)
        if not record.error
    ]
    return noted[-1] if noted else 0


def _span(shares: Grid, chosen: Sequence[Streak]) -> tuple[int, int]:
    return (
        min(int(shares.steps[streak.rows[0]]) for streak in chosen),
        max(int(shares.steps[streak.rows[-1]]) for streak in chosen),
    )


def _evidence(quantity: Quantity, shares: Grid, chosen: Sequence[Streak], worst: Streak) -> Evidence:
    first, last = _span(shares, chosen)
    return Evidence(
        probe=shares.probe, name=quantity.name, n=len(worst.rows), first_step=first, last_step=last,
        value=worst.median(shares.values),
    )  # fmt: skip
