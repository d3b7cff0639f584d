"""Layers whose gradient is exactly zero, or never comes."""

from __future__ import annotations

import numpy as np

from learnscope.findings.registry import analysis
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid, series
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import between, count, listed
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader


@analysis(place=30)
def absent(reader: RunReader, cuts: Cuts) -> list[Finding]:
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    found = _never(reader, norms, cuts)
    every = streaks(norms.values == 0, norms.values >= 0, cuts.measurements)
    for lasting in (True, False):
        chosen = [streak for streak in every if streak.lasting is lasting]
        found += [_zero(norms, chosen, cuts)] if chosen else []
    return found


def _zero(norms: Grid, chosen: list[Streak], cuts: Cuts) -> Finding:
    """A gradient is computed, and every entry of it is 0."""
    names = [norms.scopes[streak.column] for streak in chosen]
    lasting = chosen[0].lasting
    longest = max(chosen, key=lambda streak: len(streak.rows))
    n = int(np.isfinite(norms.values[:, longest.column]).sum())
    first = min(int(norms.steps[streak.rows[0]]) for streak in chosen)
    last = max(int(norms.steps[streak.rows[-1]]) for streak in chosen)
    who = names[0] if len(names) == 1 else f"{len(names)} of {len(norms.scopes)} layers"
    if lasting:
        columns = sorted(streak.column for streak in chosen)
        next_up = norms.scopes[columns[-1] + 1] if columns[-1] + 1 < len(norms.scopes) else "the loss"
        advice = (
            f"Look at what lies between {norms.scopes[columns[-1]]} and {next_up}: activations that are all dead, a "
            "multiplication by zero, an output that is computed and not used. Weight decay still shrinks such a layer."
        )
    else:
        advice = (
            f"It passed after step {last:,}: nothing to do, unless those steps were meant to train "
            f"{'this layer' if len(names) == 1 else 'these layers'}."
        )
    return Finding(
        kind="zero_gradients",
        severity="warning" if lasting else "info",
        title=f"Gradients are exactly zero in {who}"
        + (f" since step {first:,}" if lasting else f" in {between(first, last)}, not after"),
        detail=f"Every entry was 0 in {'' if len(names) == 1 else 'up to '}{len(longest.rows):,} consecutive "
        f"measurements of {n:,}, {between(first, last)}: {listed(names, cuts.names_listed)}.",
        advice=advice,
        evidence=Evidence(
            probe=norms.probe,
            name=GradientFlow.norm.name,
            n=len(longest.rows),
            first_step=first,
            last_step=last,
            value=0.0,
        ),
        scopes=names,
    )


def _never(reader: RunReader, norms: Grid, cuts: Cuts) -> list[Finding]:
    """Layers with trainable parameters that no backward reached in any measurement."""
    missing = series(reader, GradientFlow.without_gradient).finite
    if len(missing) < cuts.measurements or missing.values.min() == 0:
        return []
    model = reader.manifest.get("model") or {}
    frozen = [f".{name}" for name in model.get("frozen") or []]
    names = [
        layer for layer in model.get("layers") or []
        # names of parameters carry wrappers' prefixes that a layer's path does not
        if layer not in norms.scopes and not any(f".{layer}." in name for name in frozen)
    ]  # fmt: skip
    if not names:
        return []
    first, last = int(missing.steps[0]), int(missing.steps[-1])
    fewest, most = int(missing.values.min()), int(missing.values.max())
    tensors = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return [
        Finding(
            kind="no_gradient",
            severity="warning",
            title=f"No gradient ever reached {names[0] if len(names) == 1 else count(len(names), 'layer')}",
            detail=f"In {count(len(missing), 'measurement')}, {between(first, last)}, none reached "
            f"{listed(names, cuts.names_listed)}. Of the model's trainable tensors {tensors} had none at each of them.",
            advice=f"Check that {names[0]} is called and that its output reaches the loss: not detached, not under "
            "no_grad, not in a branch that these batches never take. If it is meant to rest, set requires_grad to "
            "False.",
            evidence=Evidence(
                probe=missing.probe,
                name=GradientFlow.without_gradient.name,
                n=len(missing),
                first_step=first,
                last_step=last,
                value=float(fewest),
            ),
            scopes=names,
        )
    ]
