"""Running statistics of batch norm layers that do not follow the batches."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.findings.outputs.held_out.worse_on_holdout import WORSE_ON_HOLDOUT, gap
from learnscope.quantities.features import Inputs
from learnscope.quantities.outputs import Holdout
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Grid, grid, series
from learnscope.reading.words import between, count, listed, num
from learnscope.record import Finding, Severity
from learnscope.store.reader import RunReader

BEYOND_CHANCE = 2.0
"""Times 1/√n (of n examples a batch), up to which statistics of batches differ by chance: three times what the median
over the channels does."""
FAR_MEAN, FAR_SCALE = 3.0, 4.0
"""Standard deviations, and the logarithm of a factor of the variance, from which fixed figures are of other data."""
STILL_SETTLING = 0.8
"""Share of its drift in the middle third of the run below which a layer is still on its way."""


def stale_norms(reader: RunReader, cuts: Cuts) -> dict[str, int]:
    """Batch norm layers whose running statistics stay far from those of the batches, and since which step.

    Judged by the median of the last half of the measurements, once there was time to settle; statistics that still come
    closer, as with a small momentum, are not stale yet.
    """
    rows = series(reader, Inputs.rows).finite.values
    by_chance = BEYOND_CHANCE / math.sqrt(float(np.median(rows))) if len(rows) and np.median(rows) else 0.0
    found: dict[str, int] = {}
    fixed = fixed_norms(reader)
    for quantity, cut, chance in (
        (Inputs.norm_drift, cuts.stale_mean, by_chance),
        (Inputs.norm_scale_drift, cuts.stale_scale, math.sqrt(2) * by_chance),
    ):
        drift = grid(reader, quantity)
        if not drift or drift.steps[-1] - drift.steps[0] < cuts.stale_steps:
            continue
        for layer, values in zip(drift.scopes, drift.values.T, strict=True):
            if layer in fixed:
                continue
            since = _stale_since(values, max(cut, chance))
            if since is not None:
                found[layer] = min(int(drift.steps[since]), found.get(layer, int(drift.steps[since])))
    return found


def fixed_norms(reader: RunReader) -> list[str]:
    """Layers that normalise training batches by their running statistics, too: training and evaluation are alike."""
    fixed = grid(reader, Inputs.norm_fixed)
    if not fixed:
        return []
    return [name for name, held in zip(fixed.scopes, np.nanmin(fixed.values, axis=0), strict=True) if held == 1]


@analysis(place=27, check="batch norms that fit their batches", needs=[Inputs.norm_fixed], at_least="measurements")
def unfit(reader: RunReader, cuts: Cuts) -> list[Finding]:
    """A candidate: norms in eval mode whose running statistics are of other data than those they are given."""
    names, drift, scale = fixed_norms(reader), grid(reader, Inputs.norm_drift), grid(reader, Inputs.norm_scale_drift)
    off = {name: (_middle(drift, name), _middle(scale, name)) for name in names}
    far = [name for name, (mean, spread) in off.items() if mean > FAR_MEAN or spread > FAR_SCALE]
    if not far or len(drift.steps) < cuts.measurements:
        return []
    worst, factor = max(off[name][0] for name in far), math.exp(max(off[name][1] for name in far))
    steps = int(drift.steps[0]), int(drift.steps[-1])
    return [
        Finding(
            kind="stale_batch_norm",
            severity="info",
            title=f"Batch norms in eval mode are given other data than their figures are of: "
            f"{listed(far, cuts.names_listed)}",
            detail="They normalise training batches by running statistics, and their mean is up to "
            f"{num(worst)} standard deviations from that of the batches, their variance off by a factor of up to "
            f"{num(factor)} (medians of {count(len(drift.steps), 'measurement')}, {between(*steps)}): what comes out "
            "is far from 0 ± 1, and examples may hardly differ in it.",
            advice="Let them use the batches' own figures (train mode), or renew the running statistics over these "
            "data before they are fixed.",
            evidence=evidence_over(steps, drift.probe, Inputs.norm_drift, len(drift.steps), worst),
            scopes=far,
            cause=True,
            explains=["not_learning", "labels_unrelated", "plateau", "vanishing", "not_moving", "majority_guess",
                      "embedding_collapse", "dead_units", "zero_gradients", "worsening", "exploding", "diverging"],
            since=steps[0],
        )
    ]  # fmt: skip


def _middle(found: Grid, name: str) -> float:
    return float(np.nanmedian(found.of(name).values)) if found and name in found.scopes else 0.0


def _stale_since(values: NDArray[np.float64], cut: float) -> int | None:
    """The first measurement from which on a drift was beyond the cut but for a few; None if it is not stale."""
    known = np.nan_to_num(values)
    third, half = len(known) // 3, -(-len(known) // 2)
    if not np.median(known[-half:]) > cut or not known[-1] > cut:
        return None
    if third and np.median(known[-third:]) < STILL_SETTLING * np.median(known[third : 2 * third]):
        return None
    # the longest end of the run of which three of four measurements are beyond
    share = np.cumsum((known > cut)[::-1]) / np.arange(1, len(known) + 1)
    return len(known) - 1 - int(np.flatnonzero((share >= 0.75) & (known > cut)[::-1])[-1])


@analysis(place=27, check="running statistics of batch norms", needs=[Inputs.norm_drift, Holdout.holdout_loss])
def stale(reader: RunReader, cuts: Cuts) -> list[Finding]:
    layers, times = stale_norms(reader, cuts), gap(reader)
    if not layers:
        return []
    drift, scale = grid(reader, Inputs.norm_drift), grid(reader, Inputs.norm_scale_drift)
    worst = float(np.nanmax(drift.values[-1])) if drift else 0.0
    factor = math.exp(float(np.nanmax(scale.values[-1]))) if scale else 1.0
    severity: Severity = "warning" if times is not None and times > cuts.worse_holdout else "info"
    beside = f" The holdout loss is {num(times)} times the training loss." if times is not None else ""
    steps = int((drift or scale).steps[0]), int((drift or scale).steps[-1])
    n = len((drift or scale).steps)
    return [
        Finding(
            kind="stale_batch_norm",
            severity=severity,
            title=f"Running statistics of batch norm do not fit the batches: {listed(list(layers), cuts.names_listed)}",
            detail=f"In eval mode these layers normalise by a running mean that is up to {num(worst)} standard "
            f"deviations from that of the training batches, and by a variance that is off by a factor of up to "
            f"{num(factor)} ({count(n, 'measurement')}, {between(*steps)}; medians over channels), and that does not "
            f"get less.{beside}",
            advice="Look at the layers' momentum (0 never updates, 0.1 is usual), at layers in eval mode while "
            "training, "
            "and at running statistics that were not loaded; or renew them over the training data before evaluating.",
            evidence=evidence_over(steps, (drift or scale).probe, Inputs.norm_drift, n, worst),
            scopes=list(layers),
            cause=True,
            explains=WORSE_ON_HOLDOUT,
            ruled_out=["Overfitting: another model is evaluated than the one that is trained."],
            since=min(layers.values()),
        )
    ]  # fmt: skip
