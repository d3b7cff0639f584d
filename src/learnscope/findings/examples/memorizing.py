"""When a model stops merely knowing its training data: the generalization gap over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learnscope.reading.changepoints import first_lasting
from learnscope.reading.gather import Floats
from learnscope.reading.jumps import ALPHA, Jumps, jumps, why_none
from learnscope.reading.words import count, num

LEAST_PEAK = 0.1
"""Gap that a model must have had at its peak to have memorised anything worth the word."""
SHARE = 0.5
"""Share of the peak below which the gap must fall."""
LASTING = 2


@dataclass(frozen=True)
class Evolution:
    """The generalization gap over the epochs, and when the memorizing plateau ended."""

    epochs: list[int]
    gaps: Floats
    peak_gap: float
    """NaN if there is no gap at all, like the final one."""
    peak_epoch: int | None
    final_gap: float
    transition_epoch: int | None
    reason: str | None
    changes: Jumps
    change_epochs: list[int]
    """The first epoch after each jump of the gap; empty if its course is smooth."""


def evolution(epochs: Sequence[int], gaps: Sequence[float]) -> Evolution:
    """Of evaluations in any order; the last one of an epoch counts, and one whose gap is not known does not.

    The transition is the first epoch after the peak from which the gap stays below half of it for two evaluations; the
    peak must be at least 0.1. After a peak that is reached more than once: after the last time.
    """
    latest = dict(zip(epochs, gaps, strict=True))
    pairs = sorted((epoch, gap) for epoch, gap in latest.items() if np.isfinite(gap))
    order = [epoch for epoch, _ in pairs]
    values = np.array([gap for _, gap in pairs], dtype=np.float64)
    changes = jumps(values, order)
    if not order:
        none = "no evaluation has a generalization gap"
        return Evolution(order, values, np.nan, None, np.nan, None, none, changes, [])
    place, reason = _transition(values)
    return Evolution(
        order, values, float(values.max()), order[int(values.argmax())], float(values[-1]),
        None if place is None else order[place], reason, changes, [order[place] for place in changes.places],
    )  # fmt: skip


def _transition(values: Floats) -> tuple[int | None, str | None]:
    peak = float(values.max())
    if peak < LEAST_PEAK:
        return None, f"the gap never reached {LEAST_PEAK}: its peak is {num(peak)}"
    last = int(np.flatnonzero(values == peak)[-1])
    after = first_lasting(values[last:] < SHARE * peak, LASTING)
    if after is not None:
        return last + after, None
    below = int((values[last:] < SHARE * peak).sum())
    times = f"it was there in {count(below, 'evaluation')} since" if below else "it never was since"
    return None, f"the gap has not stayed below {num(SHARE * peak)}, half its peak, for {LASTING} evaluations: {times}"


def why_no_changes(evolution: Evolution) -> str | None:
    """Why there are no jumps of the gap; None if there are some."""
    return None if evolution.change_epochs else why_none(evolution.changes, evolution.gaps, ALPHA)
