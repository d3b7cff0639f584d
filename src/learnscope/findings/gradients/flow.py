"""The gradient of every layer beside its weights and beside the median layer's, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, grid
from learnscope.reading.streaks import Streak
from learnscope.reading.words import between, listed, num
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Flow:
    """Ratio and norm of every layer's gradient over the steps, and the median layer's."""

    layers: list[str]
    steps: list[int]
    ratio: Floats
    norm: Floats
    median_ratio: Floats
    median_norm: Floats
    probe: str

    @property
    def off(self) -> Floats:
        """The layer's ratio over the median layer's."""
        return np.asarray(self.ratio / self.median_ratio[:, None], dtype=np.float64)

    def names(self, chosen: Sequence[Streak]) -> list[str]:
        return [self.layers[streak.column] for streak in chosen]


def flow_of(reader: RunReader, cuts: Cuts) -> Flow | None:
    ratios = grid(reader, GradientFlow.gradient_to_weight)
    # a clip by the overall norm scales all layers alike, so what was stepped compares them as well
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    if not ratios:
        return None
    norm = norms.aligned(ratios)
    return Flow(
        ratios.scopes,
        ratios.steps.tolist(),
        ratios.values,
        norm,
        _median_layer(ratios.values, cuts.min_layers),
        _median_layer(norm, cuts.min_layers),
        ratios.probe,
    )


def _median_layer(values: Floats, at_least: int) -> Floats:
    """The median at each step over the layers that got a gradient; NaN where these are too few to compare."""
    present = np.where(values > 0, values, np.nan)
    enough = np.isfinite(present).sum(axis=1) >= at_least
    out = np.full(len(values), np.nan)
    if enough.any():
        out[enough] = np.nanmedian(present[enough], axis=1)
    return out


def how_many(flow: Flow, names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{'all' if len(names) == len(flow.layers) else f'{len(names)} of'} {len(flow.layers)} layers"


def since(flow: Flow, chosen: Sequence[Streak]) -> str:
    first = min(flow.steps[s.rows[0]] for s in chosen)
    last = max(flow.steps[s.rows[-1]] for s in chosen)
    return f" since step {first:,}" if chosen[0].lasting else f" in {between(first, last)}, not after"


def extremes(flow: Flow, chosen: Sequence[Streak], cuts: Cuts) -> str:
    """How large the ratios are and how far off the median layer's, each a median over the layer's streak."""
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


def other_end(flow: Flow, upper: Sequence[Streak], cuts: Cuts) -> str:
    names = listed(flow.names(upper), cuts.names_listed)
    return f"At the other end it is {_sizes(flow, upper)} in {names}, {_factor(flow, upper)} the median layer's."


def _sizes(flow: Flow, chosen: Sequence[Streak]) -> str:
    values = sorted(s.median(flow.ratio) for s in chosen)
    return num(values[0]) if len(values) == 1 else f"{num(values[0])} to {num(values[-1])}"


def _factor(flow: Flow, chosen: Sequence[Streak]) -> str:
    """How far the farthest is from the median layer, as a factor."""
    factors = sorted(s.median(flow.off) for s in chosen)
    far = factors[0] if factors[0] < 1 else factors[-1]
    times = f"{num(1 / far)} times below" if far < 1 else f"{num(far)} times above"
    return times if len(chosen) == 1 else f"up to {times}"
