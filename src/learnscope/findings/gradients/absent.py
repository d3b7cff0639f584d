"""Layers whose gradient is exactly zero, or never comes."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over, since, span_of
from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid, series
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import between, count, listed
from learnscope.record import Finding
from learnscope.store.reader import RunReader


@analysis(place=30, check="gradients that are zero or never come", needs=[GradientFlow.norm], at_least="measurements")
def absent(reader: RunReader, cuts: Cuts) -> list[Finding]:
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    findings = _never(reader, norms, cuts)
    zero = streaks(norms.values == 0, norms.values >= 0, cuts.measurements)
    for lasting in (True, False):
        chosen = [streak for streak in zero if streak.lasting is lasting]
        findings += [_zero(norms, chosen, cuts)] if chosen else []
    return findings


def _zero(norms: Grid, chosen: list[Streak], cuts: Cuts) -> Finding:
    """A gradient is computed, and every entry of it is 0."""
    names = [norms.scopes[streak.column] for streak in chosen]
    single, lasting = len(names) == 1, chosen[0].lasting
    longest = max(chosen, key=lambda streak: len(streak.rows))
    n = int(np.isfinite(norms.values[:, longest.column]).sum())
    span = span_of(chosen, norms.steps)
    if lasting:
        column = max(streak.column for streak in chosen)
        next_up = norms.scopes[column + 1] if column + 1 < len(norms.scopes) else "the loss"
        advice = (
            f"Look at what lies between {norms.scopes[column]} and {next_up}: activations that are all dead, a "
            "multiplication by zero, an output that is computed and not used. Weight decay still shrinks such a layer."
        )
    else:
        advice = (
            f"It passed after step {span[1]:,}: nothing to do, unless those steps were meant to train "
            f"{'this layer' if single else 'these layers'}."
        )
    return Finding(
        kind="zero_gradients",
        severity="warning" if lasting else "info",
        title=f"Gradients are exactly zero in {names[0] if single else f'{len(names)} of {len(norms.scopes)} layers'} "
        f"{since(chosen, norms.steps)}",
        detail=f"Every entry was 0 in {'' if single else 'up to '}{len(longest.rows):,} consecutive "
        f"measurements of {n:,}, {between(*span)}: {listed(names, cuts.names_listed)}.",
        advice=advice,
        evidence=evidence_over(span, norms.probe, GradientFlow.norm, len(longest.rows), 0.0),
        scopes=names,
    )


def _never(reader: RunReader, norms: Grid, cuts: Cuts) -> list[Finding]:
    """Layers with trainable parameters that no backward reached in any measurement."""
    missing = series(reader, GradientFlow.without_gradient).finite
    if len(missing) < cuts.measurements or missing.values.min() == 0:
        return []
    model = reader.manifest.get("model") or {}
    frozen = [f".{name}" for name in model.get("frozen") or []]
    # names of parameters have wrappers' prefixes that a layer's path does not
    trained = [layer for layer in model.get("layers") or [] if not any(f".{layer}." in name for name in frozen)]
    names = [layer for layer in trained if layer not in norms.scopes]
    if not names:
        return []
    span = int(missing.steps[0]), int(missing.steps[-1])
    fewest, most = int(missing.values.min()), int(missing.values.max())
    tensors = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    quantity = GradientFlow.without_gradient
    finding = Finding(
        kind="no_gradient",
        severity="warning",
        title=f"No gradient ever reached {names[0] if len(names) == 1 else count(len(names), 'layer')}",
        detail=f"In {count(len(missing), 'measurement')}, {between(*span)}, none reached "
        f"{listed(names, cuts.names_listed)}. Of the model's trainable tensors {tensors} had none at each of them.",
        advice=f"Check that {names[0]} is called and that its output reaches the loss: not detached, not under "
        "no_grad, not in a branch that these batches never take. If it is not meant to train, set requires_grad to "
        "False.",
        evidence=evidence_over(span, missing.probe, quantity, len(missing), float(fewest)),
        scopes=names,
    )
    return [finding]
