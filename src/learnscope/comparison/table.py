"""All series of all runs in one table: last value, best value, difference from the first run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from learnscope.comparison.parting import Parting
from learnscope.comparison.series import Key, SeriesOf, direction
from learnscope.reading.gather import Series


class Summary(NamedTuple):
    """One series of one run."""

    last: float | None
    """None if it is missing, with the reason in `status`."""
    status: str | None
    last_step: int
    steps: int
    """How many steps it was recorded at."""
    best: float | None
    best_step: int | None
    """None where the name does not say which value is best."""


def summarise(key: Key, series: Series) -> Summary:
    """
    >>> series = Series(np.array([1, 2, 3]), np.array([2.0, 0.5, np.nan]), [None, None, "inf"])
    >>> summarise(Key("Loss", "model", "model", "loss"), series)
    Summary(last=None, status='inf', last_step=3, steps=3, best=0.5, best_step=2)
    """
    last = float(series.values[-1])
    best, best_step = None, None
    finite, wanted = series.finite, direction(key)
    if wanted is not None and len(finite):
        place = int(finite.values.argmin() if wanted == "lowest" else finite.values.argmax())
        best, best_step = float(finite.values[place]), int(finite.steps[place])
    return Summary(
        None if np.isnan(last) else last, series.status[-1], int(series.steps[-1]), len(series), best, best_step
    )


class Line(NamedTuple):
    """One series of all runs that have it, by their labels."""

    key: Key
    of: Mapping[str, Summary]
    differences: Mapping[str, float | None]
    """The last value minus the first run's, for each of the other runs; None where one of the two is missing."""
    common_steps: int
    """Steps that all runs have."""
    parts_at: Mapping[str, int | None]
    """The first step at which it differs from the first run's, None if it never does. Runs that share no step with
    the first are not in it; empty for times and memory."""

    def to_json(self) -> dict[str, Any]:
        return {
            **self.key._asdict(), "labels": dict(self.key.labels), "best_is": direction(self.key),
            "common_steps": self.common_steps, "parts_at": dict(self.parts_at), "difference": dict(self.differences),
            "runs": {label: summary._asdict() for label, summary in self.of.items()},
        }  # fmt: skip


def lines(keys: Sequence[Key], series: Mapping[str, SeriesOf], partings: Sequence[Parting]) -> list[Line]:
    return [_line(key, series, partings) for key in keys]


def _line(key: Key, series: Mapping[str, SeriesOf], partings: Sequence[Parting]) -> Line:
    of = {label: summarise(key, run[key]) for label, run in series.items() if key in run}
    first, *others = series
    differences = {}
    for label in others:
        ends = [of[run].last if run in of else None for run in (first, label)]
        gap = None if ends[0] is None or ends[1] is None else ends[1] - ends[0]
        differences[label] = gap if gap is not None and math.isfinite(gap) else None
    common = 0
    if len(of) == len(series):
        common = len(reduce(np.intersect1d, (run[key].steps for run in series.values())))
    parts_at = {p.other: p.series[key].step for p in partings if key in p.series and len(p.series[key].common)}
    return Line(key, of, differences, common, parts_at)


_PER_RUN = ("last", "status", "last_step", "steps", "best", "best_step")


def as_frame(lines: Sequence[Line], labels: Sequence[str]) -> pd.DataFrame:
    """A row for each series; columns are (what, run): `frame["last"]` has a column for each run."""
    columns: dict[tuple[str, str], Any] = {}
    for what in _PER_RUN:
        for label in labels:
            cells = [getattr(line.of[label], what) if label in line.of else None for line in lines]
            columns[what, label] = _column(what, cells)
    for label in labels[1:]:
        columns["difference", label] = pd.array([line.differences[label] for line in lines], dtype="Float64")
        columns["parts_at", label] = pd.array([line.parts_at.get(label) for line in lines], dtype="Int64")
    columns["common_steps", ""] = pd.array([line.common_steps for line in lines], dtype="Int64")
    index = pd.MultiIndex.from_tuples(
        [(*line.key[:4], line.key.conditions) for line in lines], names=["probe", "kind", "scope", "name", "labels"]
    )
    frame = pd.DataFrame(columns, index=index)
    for what in ("last", "best", "difference"):
        for label in labels:
            if (what, label) in frame:
                frame[what, label] = frame[what, label].astype("float64")
    frame.columns.names = ["what", "run"]
    return frame


def _column(what: str, cells: list[Any]) -> Any:
    if what == "status":
        return pd.Series(cells, dtype=object).to_numpy()
    return pd.array(cells, dtype="Int64" if what in ("last_step", "steps", "best_step") else "Float64")
