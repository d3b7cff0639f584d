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
    """None where neither the lowest nor the highest value is the best."""
    best_step: int | None


def summarise(key: Key, series: Series) -> Summary:
    """
    >>> series = Series(np.array([1, 2, 3]), np.array([2.0, 0.5, np.nan]), [None, None, "inf"])
    >>> summarise(Key("Loss", "model", "model", "loss"), series)
    Summary(last=None, status='inf', last_step=3, steps=3, best=0.5, best_step=2)
    """
    last = float(series.values[-1])
    best, best_step = None, None
    finite, best_is = series.finite, direction(key)
    if best_is is not None and len(finite):
        place = int(finite.values.argmin() if best_is == "lowest" else finite.values.argmax())
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
    parts_at: Mapping[str, int | None]
    """The first step at which it differs from the first run's, None if it never does. Without the runs that share no
    step with the first; empty for times and memory."""

    def to_json(self) -> dict[str, Any]:
        return {
            **self.key._asdict(), "labels": dict(self.key.labels), "best_is": direction(self.key),
            "common_steps": self.common_steps, "parts_at": dict(self.parts_at), "difference": dict(self.differences),
            "runs": {label: summary._asdict() for label, summary in self.of.items()},
        }  # fmt: skip


def line(key: Key, series: Mapping[str, SeriesOf], partings: Sequence[Parting]) -> Line:
    """A series of all runs; the first of them is the one to compare with."""
    of = {label: summarise(key, run[key]) for label, run in series.items() if key in run}
    first, *others = series
    differences: dict[str, float | None] = dict.fromkeys(others)
    for label in of.keys() & others:
        start, end = of[first].last if first in of else None, of[label].last
        if start is not None and end is not None and math.isfinite(end - start):
            differences[label] = end - start
    common = 0
    if len(of) == len(series):
        common = len(reduce(np.intersect1d, (run[key].steps for run in series.values())))
    parts_at = {p.other: p.series[key].step for p in partings if key in p.series and len(p.series[key].common)}
    return Line(key, of, differences, common, parts_at)


def as_frame(lines: Sequence[Line], labels: Sequence[str]) -> pd.DataFrame:
    """A row for each series; columns are (what, run): `frame["last"]` has a column for each run."""
    columns: dict[tuple[str, str], Any] = {}
    for what in Summary._fields:
        dtype = "float64" if what in ("last", "best") else "Int64"
        for label in labels:
            cells = [getattr(line.of.get(label), what, None) for line in lines]
            columns[what, label] = np.array(cells, object) if what == "status" else pd.Series(cells, dtype=dtype)
    for label in labels[1:]:
        columns["difference", label] = pd.Series([line.differences[label] for line in lines], dtype="float64")
        columns["parts_at", label] = pd.Series([line.parts_at.get(label) for line in lines], dtype="Int64")
    columns["common_steps", ""] = pd.Series([line.common_steps for line in lines], dtype="Int64")
    frame = pd.DataFrame(columns)
    frame.columns.names = ["what", "run"]
    return frame.set_axis(
        pd.MultiIndex.from_tuples(
            [(*line.key[:4], line.key.conditions) for line in lines], names=["probe", "kind", "scope", "name", "labels"]
        )
    )
