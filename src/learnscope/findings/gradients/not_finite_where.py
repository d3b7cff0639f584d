"""Where NaN and infinity are looked for: loss, gradients, parameters and the holdout loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.quantities.updates import ParameterChange
from learnscope.reading.gather import Series, series
from learnscope.store.reader import RunReader

Counted = type[GradientFlow] | type[ParameterChange]


@dataclass(frozen=True)
class Source:
    """Numbers that may be bad: the steps at which they were measured, and those at which they were not finite."""

    what: str
    probe: str
    name: str
    measured: NDArray[np.int64]
    bad: NDArray[np.int64]
    counts: Counted | None = None
    """The quantities that count their bad entries."""

    @property
    def first(self) -> int:
        return int(self.bad[0])

    @property
    def lasting(self) -> bool:
        """Whether the last measurement is bad too."""
        return int(self.bad[-1]) == int(self.measured[-1])

    def clean_before(self, step: int) -> int | None:
        """The last measured step before `step` and before the first bad one."""
        earlier = self.measured[self.measured < min(step, self.first if len(self.bad) else step)]
        return int(earlier[-1]) if len(earlier) else None

    def clean_between(self, step: int, end: int) -> bool:
        """Whether any measurement after `step` and before `end` was finite."""
        return bool(((self.measured > step) & (self.measured < end)).any())

    def clean_at(self, step: int) -> bool:
        return step in self.measured and step not in self.bad


def sources(reader: RunReader) -> tuple[Source, Source, Source, Source]:
    """Loss, gradients, parameters and holdout loss: the order in which a step computes them."""
    return (
        _of_value(series(reader, Loss.loss), "loss", Loss.loss.name),
        _of_counts(reader, GradientFlow, "gradients"),
        _of_counts(reader, ParameterChange, "parameters"),
        _of_value(series(reader, Holdout.holdout_loss), "holdout loss", Holdout.holdout_loss.name),
    )


def _of_value(values: Series, what: str, name: str) -> Source:
    measured = values.steps[np.isfinite(values.values) | np.isin(values.steps, values.broken)]
    return Source(what, values.probe, name, measured, values.broken)


def _of_counts(reader: RunReader, counts: Counted, what: str) -> Source:
    """From the model-wide counts of bad entries. Where they are null, nothing is known."""
    nan, inf = series(reader, counts.nan), series(reader, counts.inf)
    bad = [s.steps[np.nan_to_num(s.values) > 0] for s in (nan, inf)]
    measured = [s.finite.steps for s in (nan, inf)]
    name = f"{counts.nan.name}, {counts.inf.name}"
    return Source(what, nan.probe or inf.probe, name, np.union1d(*measured), np.union1d(*bad), counts)
