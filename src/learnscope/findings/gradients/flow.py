"""The gradient of every layer compared with its weights and with the median layer, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.quantities.gradients import GradientFlow
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Floats, grid
from learnscope.reading.streaks import Streak
from learnscope.reading.words import listed, num
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Flow:
    """Ratio and norm of every layer's gradient over the steps, and the median layer's."""

    layers: list[str]
    steps: NDArray[np.int64]
    ratio: Floats
    norm: Floats
    median_ratio: Floats
    median_norm: Floats
    probe: str

    def names(self, chosen: Sequence[Streak]) -> list[str]:
        return [self.layers[streak.column] for streak in chosen]


def flow_of(reader: RunReader, cuts: Cuts) -> Flow | None:
    ratios = grid(reader, GradientFlow.gradient_to_weight)
    if not ratios:
        return None
    # a clip by the overall norm scales all layers alike, so norms after it compare layers as well
    norm = grid(reader, GradientFlow.norm, stage="stepped").aligned(ratios)
    medians = (_median_layer(values, cuts.min_layers) for values in (ratios.values, norm))
    return Flow(ratios.scopes, ratios.steps, ratios.values, norm, *medians, ratios.probe)


def _median_layer(values: Floats, at_least: int) -> Floats:
    """The median at each step over the layers that got a gradient; NaN where these are fewer than `at_least`."""
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


def extremes(flow: Flow, chosen: Sequence[Streak], cuts: Cuts) -> str:
    """The ratios, and how far they are from the median layer's; each a median over the layer's streak."""
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
    off_median = np.asarray(flow.ratio / flow.median_ratio[:, None], dtype=np.float64)
    factors = sorted(s.median(off_median) for s in chosen)
    far = factors[0] if factors[0] < 1 else factors[-1]
    times = f"{num(1 / far)} times below" if far < 1 else f"{num(far)} times above"
    return times if len(chosen) == 1 else f"up to {times}"
