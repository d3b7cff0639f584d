"""Updates and weight decay that rounding takes away before they reach half-precision weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from learnscope.findings.registry import analysis
from learnscope.quantities import Quantity
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, Grid, grid, rows
from learnscope.reading.streaks import Streak, streaks
from learnscope.reading.words import between, count, listed, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

UPDATES = (
    ParameterChange.absorbed_share, ParameterChange.absorbed_share_low, ParameterChange.absorbed_share_high,
)  # fmt: skip
DECAY = (
    ParameterChange.decay_absorbed_share,
    ParameterChange.decay_absorbed_share_low,
    ParameterChange.decay_absorbed_share_high,
)
"""What rounding took, and both ends of its interval."""
FRACTION_BITS = {"bfloat16": 7, "float16": 10}
"""Bits of the fraction of each half-precision dtype: its numbers near 1 are 2^−bits apart."""


@dataclass(frozen=True)
class _Lost:
    """A share over the steps, of the model or of its layers, and where it was beyond a cut for long enough."""

    name: str
    share: Grid
    low: Floats
    high: Floats
    chosen: list[Streak]

    @property
    def scopes(self) -> list[str]:
        return [self.share.scopes[streak.column] for streak in self.chosen]

    @property
    def ends(self) -> tuple[int, int]:
        steps = self.share.steps
        return (
            int(min(steps[streak.rows[0]] for streak in self.chosen)),
            int(max(steps[streak.rows[-1]] for streak in self.chosen)),
        )

    @property
    def n(self) -> int:
        return min(len(streak.rows) for streak in self.chosen)

    def median(self, values: Floats) -> float:
        """Over the measurements, and over the scopes if there are several."""
        return float(np.median([streak.median(values) for streak in self.chosen]))

    def when(self) -> str:
        first, last = self.ends
        return f"since step {first:,}" if self.chosen[0].lasting else f"in {between(first, last)}, not after"

    def evidence(self) -> Evidence:
        first, last = self.ends
        interval = (self.median(self.low), self.median(self.high))
        return Evidence(
            probe=self.share.probe, name=self.name, n=self.n, first_step=first, last_step=last,
            value=self.median(self.share.values), interval=interval,
        )  # fmt: skip


@analysis(place=100)
def precision(reader: RunReader, cuts: Cuts) -> list[Finding]:
    dtypes = [d for d in FRACTION_BITS if d in ((reader.manifest.get("model") or {}).get("dtypes") or {})]
    if not dtypes:
        return []
    found = []
    for make, share, cut in ((_updates, UPDATES, cuts.absorbed_share), (_decay, DECAY, cuts.decay_absorbed_share)):
        model, layers = (_lost(reader, share, kind, cut, cuts.measurements) for kind in ("model", "layer"))
        if model is not None or layers is not None:
            found.append(make(reader, model, layers, dtypes, cuts))
    return found


def _lost(reader: RunReader, quantities: tuple[Quantity, ...], kind: str, cut: float, at_least: int) -> _Lost | None:
    # decay that is rounded together with the update is lost with it, which is a statement about the update
    wanted = {"rounding": "apart"} if quantities is DECAY else {}
    share, low, high = (grid(reader, quantity, kind=kind, **wanted) for quantity in quantities)
    if not share or not low:
        return None
    lower = low.aligned(share)
    # of the updates a sample must show it beyond its own uncertainty; all of the decay is a matter of counting
    holds = lower > cut if quantities is UPDATES else share.values >= cut
    chosen = streaks(holds, np.isfinite(share.values), at_least)
    chosen = [streak for streak in chosen if streak.lasting] or chosen
    return _Lost(quantities[0].name, share, lower, high.aligned(share), chosen) if chosen else None


def _updates(
    reader: RunReader, model: _Lost | None, layers: _Lost | None, dtypes: Sequence[str], cuts: Cuts
) -> Finding:
    lost = model or layers
    assert lost is not None, "called where one of the two is"
    where = "the model" if model else _layers(lost)
    first, last = lost.ends
    evidence = lost.evidence()
    assert evidence.interval is not None, "given by _Lost.evidence"
    kind = " and ".join(dtypes)
    detail = (
        f"In {count(lost.n, 'consecutive measurement')}, {between(first, last)}, {percent(evidence.value or 0.0)} of "
        f"the sampled entries (95 % interval {percent(evidence.interval[0])} to {percent(evidence.interval[1])}) had "
        f"an update other than 0 and kept every stored bit{_named(model, layers, cuts)}.{_coverage(reader)}"
    )
    return Finding(
        kind="updates_absorbed",
        severity="warning",
        title=f"Rounding to {kind} takes {percent(evidence.value or 0.0)} of the updates of {where}, {lost.when()}",
        detail=detail,
        advice=f"Keep the weights in float32 and compute in {dtypes[0]} under torch.autocast"
        f"{' with a GradScaler' if dtypes[0] == 'float16' else ''}: updates this small then land. Where the model must "
        f"stay {kind}, use an optimizer that keeps a float32 master copy of the weights, sums with Kahan's "
        f"compensation or rounds stochastically. {_rate_advice(reader)}",
        evidence=evidence,
        scopes=layers.scopes if layers else ["model"],
    )


def _decay(reader: RunReader, model: _Lost | None, layers: _Lost | None, dtypes: Sequence[str], cuts: Cuts) -> Finding:
    lost = model or layers
    assert lost is not None, "called where one of the two is"
    where = "the model" if model else _layers(lost)
    first, last = lost.ends
    evidence = lost.evidence()
    kind = " and ".join(dtypes)
    apart, through_gradient = _kinds_of_decay(reader)
    limits = " and ".join(_smallest(dtype) for dtype in dtypes)
    used = _largest_product(reader)
    here = f"; here it is at most {num(used)}" if used is not None else ""
    parts = []
    if apart:
        parts.append(
            "A weight w·(1 − lr·weight_decay) rounds back to w unless lr·weight_decay exceeds half of the spacing of "
            f"numbers at w, over w: {limits}{here}."
        )
    if through_gradient:
        parts.append(
            "Where decay is added to the gradient, g + weight_decay·w rounds back to g unless weight_decay·|w| exceeds "
            f"{' and '.join(_smallest(dtype, '|g|') for dtype in dtypes)}."
        )
    return Finding(
        kind="weight_decay_absorbed",
        severity="warning",
        title=f"Weight decay has no effect on {percent(evidence.value or 0.0)} of the entries of {where}, {lost.when()}"
        f": rounding to {kind} takes it",
        detail=f"In {count(lost.n, 'consecutive measurement')}, {between(first, last)}, weight decay alone left "
        f"{percent(evidence.value or 0.0)} of the sampled entries as they were{_named(model, layers, cuts)}. "
        + " ".join(parts),
        advice="Keep the weights in float32, or a float32 master copy of them in the optimizer: decay this small then "
        "lands. Without that, weight_decay might as well be 0. A fused optimizer (fused=True) rounds decay and update "
        "together, and loses the decay only where the whole update is lost.",
        evidence=evidence,
        scopes=layers.scopes if layers else ["model"],
    )


def _layers(lost: _Lost) -> str:
    total = len(lost.share.scopes)
    return f"{len(lost.chosen)} of {count(total, 'layer')}"


def _named(model: _Lost | None, layers: _Lost | None, cuts: Cuts) -> str:
    """Which layers, and how far each is beyond the cut."""
    if layers is None:
        return ", over the model"
    shares = sorted(streak.median(layers.share.values) for streak in layers.chosen)
    sizes = " to ".join(dict.fromkeys(percent(share) for share in (shares[0], shares[-1])))
    names = listed(layers.scopes, cuts.names_listed)
    return f" ({sizes} in {names})" if model else f", in {names}"


def _coverage(reader: RunReader) -> str:
    coverage = rows(reader, ParameterChange.absorbed_coverage)["value"].dropna()
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
    of = f" of {unit}" if unit else ""
    return f"2^-{bits + 2} to 2^-{bits + 1}{of} ({num(least)} to {num(most)}) in {dtype}"


def _groups(reader: RunReader) -> list[tuple[str, dict[str, Any]]]:
    return [
        (str(optimizer.get("class")), group)
        for optimizer in reader.manifest.get("optimizers") or []
        for group in optimizer.get("groups") or []
    ]


def _kinds_of_decay(reader: RunReader) -> tuple[bool, bool]:
    """Whether some group decays the weights themselves, and whether some decays through the gradient."""
    apart = [name == "AdamW" or bool(group.get("decoupled_weight_decay")) for name, group in _groups(reader)]
    return any(apart), not all(apart)


def _largest_rate(reader: RunReader) -> float | None:
    """As recorded; else as the run began with, which a schedule may have changed."""
    recorded = rows(reader, LearningRate.learning_rate, kind="group")["value"].dropna()
    if len(recorded):
        return float(recorded.max())
    given = [float(group["lr"]) for _, group in _groups(reader) if isinstance(group.get("lr"), int | float)]
    return max(given, default=None)


def _largest_product(reader: RunReader) -> float | None:
    rate = _largest_rate(reader)
    decays = [float(g["weight_decay"]) for _, g in _groups(reader) if isinstance(g.get("weight_decay"), int | float)]
    return rate * max(decays) if rate is not None and decays and max(decays) > 0 else None


def _rate_advice(reader: RunReader) -> str:
    rate = _largest_rate(reader)
    than = f" than {num(rate)}" if rate else ""
    return f"A larger learning rate{than} helps too, if the training bears it."
