"""The first step at which two runs are no longer the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.comparison.series import Key, SeriesOf, direction, is_clock
from learnscope.reading.gather import Series


@dataclass(frozen=True)
class SeriesParting:
    """How one series of two runs compares at the steps that both have."""

    common: NDArray[np.int64]
    """The steps that both have."""
    step: int | None
    """The first of them at which they differ; None if there is none."""
    values: tuple[float | None, float | None] = (None, None)
    """The two values at that step; None for a missing one, with the reason in `status`."""
    status: tuple[str | None, str | None] = (None, None)


@dataclass(frozen=True)
class Parting:
    """Where two runs part, over all series that both have; `first` and `other` are their labels."""

    first: str
    other: str
    step: int | None
    """The first step at which any series differs."""
    series: Mapping[Key, SeriesParting]
    """Every series that both have, without times and memory."""
    common_steps: int
    """Steps at which both have a value of at least one series."""
    steps_before: int
    """The common steps before `step`, at which everything that both recorded is the same."""
    left_out: tuple[Key, ...]
    """Series of times and memory, which always differ and say nothing about the training."""
    only_first: int
    """How many series only the first run has."""
    only_other: int

    @property
    def state(self) -> str:
        """`"parts"`, `"never"`, or `"no common step"`."""
        if self.step is not None:
            return "parts"
        return "never" if self.common_steps else "no common step"

    @property
    def parted(self) -> list[Key]:
        """The series that differ at `step`: those of the model first, and of these losses and accuracies first."""
        keys = [key for key, parting in self.series.items() if parting.step is not None and parting.step == self.step]
        return sorted(keys, key=lambda key: (key.kind != "model", direction(key) is None))

    def to_json(self) -> dict[str, Any]:
        parted = [
            {**key._asdict(), "labels": dict(key.labels), "values": list(at.values), "status": list(at.status)}
            for key, at in ((key, self.series[key]) for key in self.parted)
        ]
        return {
            "first": self.first, "other": self.other, "state": self.state, "step": self.step,
            "common_steps": self.common_steps, "steps_before": self.steps_before, "series_compared": len(self.series),
            "series_only_first": self.only_first, "series_only_other": self.only_other,
            "left_out": sorted({key.name for key in self.left_out}), "series": parted,
        }  # fmt: skip


def find_parting(first: str, other: str, runs: Mapping[str, SeriesOf], tolerance: float = 0.0) -> Parting:
    left, right = runs[first], runs[other]
    shared = [key for key in left if key in right]
    compared = {key: part(left[key], right[key], tolerance) for key in shared if not is_clock(key.name)}
    common = np.unique(np.concatenate([np.array([], np.int64), *(series.common for series in compared.values())]))
    step = min((series.step for series in compared.values() if series.step is not None), default=None)
    return Parting(
        first=first, other=other, step=step, series=compared, common_steps=len(common),
        steps_before=len(common) if step is None else int((common < step).sum()),
        left_out=tuple(key for key in shared if is_clock(key.name)),
        only_first=len(left) - len(shared), only_other=len(right) - len(shared),
    )  # fmt: skip


def part(left: Series, right: Series, tolerance: float = 0.0) -> SeriesParting:
    """The first common step at which the values differ by more than `tolerance`, relative to the larger.

    With a tolerance of 0 they differ if any bit does. A missing value differs from a number, and from a value that is
    missing for another reason: NaN equals NaN, but not infinity.
    """
    common, at_left, at_right = np.intersect1d(left.steps, right.steps, assume_unique=True, return_indices=True)
    a, b = left.values[at_left], right.values[at_right]
    reasons = [(left.status[i], right.status[j]) for i, j in zip(at_left.tolist(), at_right.tolist(), strict=True)]
    if tolerance == 0:
        different: NDArray[np.bool_] = a.view(np.int64) != b.view(np.int64)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            different = np.abs(a - b) > tolerance * np.maximum(np.abs(a), np.abs(b))
    missing = np.isnan(a).astype(int) + np.isnan(b)
    other_reason = np.array([pair[0] != pair[1] for pair in reasons], dtype=bool)
    differs = np.select([missing == 2, missing == 1], [other_reason, np.ones(len(common), bool)], different)
    if not differs.any():
        return SeriesParting(common, None)
    place = int(differs.argmax())
    first, second = (None if np.isnan(value) else float(value) for value in (a[place], b[place]))
    return SeriesParting(common, int(common[place]), (first, second), reasons[place])
