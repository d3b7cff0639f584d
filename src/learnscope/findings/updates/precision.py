"""Updates and weight decay that rounding takes away before they reach half-precision weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over, since, span_of
from learnscope.quantities import Quantity
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Grid, grid, rows
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

Q = ParameterChange
UPDATES = (Q.absorbed_share, Q.absorbed_share_low, Q.absorbed_share_high)
DECAY = (Q.decay_absorbed_share, Q.decay_absorbed_share_low, Q.decay_absorbed_share_high)
"""The share that was lost to rounding, and both ends of its interval."""
FRACTION_BITS = {"bfloat16": 7, "float16": 10}
"""Bits of the fraction of each half-precision dtype: its numbers near 1 are 2^−bits apart."""

DECAY_ADVICE = (
    "Keep the weights in float32, or a float32 master copy of them in the optimizer: decay this small then lands. "
    "Without that, weight_decay might as well be 0. A fused optimizer (fused=True) rounds decay and update together, "
    "and loses the decay only where the whole update is lost."
)


@dataclass(frozen=True)
class _Lost:
    """A share over the steps, of the model or of its layers, and where it was beyond a cut for long enough."""

    share: Grid
    low: Floats
    high: Floats
    streaks: list[Streak]

    @property
    def scopes(self) -> list[str]:
        return [self.share.scopes[streak.column] for streak in self.streaks]

    def median(self, values: Floats) -> float:
        """Over the measurements, and over the scopes if there are several."""
        return float(np.median([streak.median(values) for streak in self.streaks]))


def _short_dtypes(reader: RunReader) -> list[str]:
    return [d for d in FRACTION_BITS if d in ((reader.manifest.get("model") or {}).get("dtypes") or {})]


def _full_precision(reader: RunReader) -> str | None:
    return None if _short_dtypes(reader) else "no weights are stored in half precision"


@analysis(place=100, check="updates lost to rounding", needs=[UPDATES[0]], unless=_full_precision)
def precision(reader: RunReader, cuts: Cuts) -> list[Finding]:
    dtypes = _short_dtypes(reader)
    if not dtypes:
        return []
    findings = []
    for quantities, cut in ((UPDATES, cuts.absorbed_share), (DECAY, cuts.decay_absorbed_share)):
        model, layers = (_lost(reader, quantities, kind, cut, cuts.measurements) for kind in ("model", "layer"))
        lost = model or layers
        if lost is None:
            continue
        where = "the model" if model else f"{len(lost.streaks)} of {count(len(lost.share.scopes), 'layer')}"
        when = f"{where}, {since(lost.streaks, lost.share.steps)}"
        n, span = min(len(streak.rows) for streak in lost.streaks), span_of(lost.streaks, lost.share.steps)
        share, low, high = (lost.median(values) for values in (lost.share.values, lost.low, lost.high))
        if quantities is UPDATES:
            title = f"Rounding to {' and '.join(dtypes)} takes {percent(share)} of the updates of {when}"
            statement = (
                f"{percent(share)} of the sampled entries (95 % interval {percent(low)} to {percent(high)}) had an "
                "update other than 0 and kept every stored bit"
            )
            reasons, advice = _coverage(reader), _updates_advice(reader, dtypes)
        else:
            title = (
                f"Weight decay has no effect on {percent(share)} of the entries of {when}: rounding to "
                f"{' and '.join(dtypes)} takes it"
            )
            statement = f"weight decay alone left {percent(share)} of the sampled entries as they were"
            reasons, advice = _decay_reasons(reader, dtypes), DECAY_ADVICE
        findings.append(
            Finding(
                kind="updates_absorbed" if quantities is UPDATES else "weight_decay_absorbed",
                severity="warning",
                title=title,
                detail=f"In {count(n, 'consecutive measurement')}, {between(*span)}, {statement}"
                f"{_layer_shares(model, layers, cuts)}.{reasons}",
                advice=advice,
                evidence=evidence_over(span, lost.share.probe, quantities[0], n, share, (low, high)),
                scopes=layers.scopes if layers else ["model"],
            )
        )
    return findings


def _lost(reader: RunReader, quantities: tuple[Quantity, ...], kind: str, cut: float, at_least: int) -> _Lost | None:
    # decay that is rounded together with the update is lost with it, which is a statement about the update
    labels = {"rounding": "apart"} if quantities is DECAY else {}
    share, low, high = (grid(reader, quantity, kind=kind, **labels) for quantity in quantities)
    if not share or not low:
        return None
    lower = low.aligned(share)
    # lost updates must be beyond the sample's own uncertainty; that all of the decay is lost is a matter of counting
    holds = lower > cut if quantities is UPDATES else share.values >= cut
    chosen = streaks(holds, np.isfinite(share.values), at_least)
    chosen = [streak for streak in chosen if streak.lasting] or chosen
    return _Lost(share, lower, high.aligned(share), chosen) if chosen else None


def _updates_advice(reader: RunReader, dtypes: Sequence[str]) -> str:
    rate = _largest_rate(reader)
    return (
        f"Keep the weights in float32 and compute in {dtypes[0]} under torch.autocast"
        f"{' with a GradScaler' if dtypes[0] == 'float16' else ''}: updates this small then land. Where the model must "
        f"stay {' and '.join(dtypes)}, use an optimizer that keeps a float32 master copy of the weights, sums with "
        "Kahan's compensation or rounds stochastically. A larger learning rate"
        f"{f' than {num(rate)}' if rate else ''} helps too, if the training bears it."
    )


def _decay_reasons(reader: RunReader, dtypes: Sequence[str]) -> str:
    """Why decay is lost, for groups that decay the weights themselves and for those that do so through the gradient."""
    groups = _groups(reader)
    on_weights = [name == "AdamW" or bool(group.get("decoupled_weight_decay")) for name, group in groups]
    decays = [float(g["weight_decay"]) for _, g in groups if isinstance(g.get("weight_decay"), int | float)]
    rate, largest = _largest_rate(reader), max(decays, default=0.0)
    here = f"; here it is at most {num(rate * largest)}" if rate is not None and largest > 0 else ""
    reasons = ""
    if any(on_weights):
        reasons += (
            " A weight w·(1 − lr·weight_decay) rounds back to w unless lr·weight_decay exceeds half of the spacing of "
            f"numbers at w, over w: {' and '.join(_smallest(dtype) for dtype in dtypes)}{here}."
        )
    if not all(on_weights):
        reasons += (
            " Where decay is added to the gradient, g + weight_decay·w rounds back to g unless weight_decay·|w| "
            f"exceeds {' and '.join(_smallest(dtype, ' of |g|') for dtype in dtypes)}."
        )
    return reasons


def _layer_shares(model: _Lost | None, layers: _Lost | None, cuts: Cuts) -> str:
    """Which layers, and how far each is beyond the cut."""
    if layers is None:
        return ", over the model"
    shares = sorted(streak.median(layers.share.values) for streak in layers.streaks)
    sizes = " to ".join(dict.fromkeys(percent(share) for share in (shares[0], shares[-1])))
    names = listed(layers.scopes, cuts.names_listed)
    return f" ({sizes} in {names})" if model else f", in {names}"


def _coverage(reader: RunReader) -> str:
    coverage = rows(reader, Q.absorbed_coverage)["value"].dropna()
    if not len(coverage) or float(coverage.min()) >= 1.0:
        return ""
    return (
        f" This is known for {percent(float(coverage.median()))} of the updated entries: the others belong to an "
        "optimizer whose update is not known."
    )


def _smallest(dtype: str, unit: str = "") -> str:
    """Half of the spacing over the number: 2^−(bits+1) at the start of an octave, half of that at its end."""
    bits = FRACTION_BITS[dtype]
    least, most = 2.0 ** -(bits + 2), 2.0 ** -(bits + 1)
    return f"2^-{bits + 2} to 2^-{bits + 1}{unit} ({num(least)} to {num(most)}) in {dtype}"


def _groups(reader: RunReader) -> list[tuple[str, dict[str, Any]]]:
    """The optimizers' classes and groups."""
    optimizers = reader.manifest.get("optimizers") or []
    return [(str(optimizer.get("class")), group) for optimizer in optimizers for group in optimizer.get("groups") or []]


def _largest_rate(reader: RunReader) -> float | None:
    """The largest recorded one; else that at the start, which a schedule may have changed."""
    recorded = rows(reader, LearningRate.learning_rate, kind="group")["value"].dropna()
    if len(recorded):
        return float(recorded.max())
    initial = [float(group["lr"]) for _, group in _groups(reader) if isinstance(group.get("lr"), int | float)]
    return max(initial, default=None)
