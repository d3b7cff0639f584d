"""The numbers of a run, a series for everything that was measured."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from learnscope.findings.gather import Series
from learnscope.record import Label
from learnscope.run import Run

_CLOCKS = re.compile(
    r"(?:^|[^a-z])(?:time|timestamp|duration|elapsed|seconds?|secs?|ms|throughput|memory|rss)(?:$|[^a-z])|per_sec"
)


class Key(NamedTuple):
    """What a series is known by, in every run alike."""

    probe: str
    kind: str
    scope: str
    name: str
    labels: tuple[tuple[str, Label], ...] = ()

    @property
    def conditions(self) -> str:
        """
        >>> Key("GradientFlow", "layer", "h.0", "norm", (("stage", "stepped"),)).conditions
        'stage=stepped'
        """
        return ", ".join(f"{label}={value}" for label, value in self.labels)

    def __str__(self) -> str:
        """
        >>> print(Key("GradientFlow", "layer", "h.0", "norm", (("stage", "stepped"),)))
        GradientFlow norm of layer h.0 (stage=stepped)
        """
        where = "" if self.kind == "model" else f" of {self.kind} {self.scope}"
        return f"{self.probe} {self.name}{where}{f' ({self.conditions})' if self.labels else ''}"


SeriesOf = Mapping[Key, Series]


class _Points(NamedTuple):
    steps: array[int]
    values: array[float]
    reasons: list[str | None]


def read_series(run: Run) -> dict[Key, Series]:
    """Every series of a run in the order of recording, without what a later attempt superseded.

    Of several numbers for one step the last counts.
    """
    points: dict[Key, _Points] = {}
    for record in run.records():
        for table in record.tables:
            for column in table.columns:
                labels = tuple(sorted(column.labels.items()))
                for position, scope in enumerate(table.scopes):
                    key = Key(record.probe, table.kind, scope, column.name, labels)
                    kept = points.get(key)
                    if kept is None:
                        kept = points[key] = _Points(array("q"), array("d"), [])
                    value = column.values[position]
                    kept.steps.append(record.step)
                    kept.values.append(np.nan if value is None else value)
                    kept.reasons.append(column.status.get(position))
    return {key: _finished(key, kept) for key, kept in points.items()}


def _finished(key: Key, points: _Points) -> Series:
    steps = np.array(points.steps, dtype=np.int64)
    # of equal steps the last: the first of the reversed ones
    unique, places = np.unique(steps[::-1], return_index=True)
    places = len(steps) - 1 - places
    reasons = [points.reasons[place] for place in places.tolist()]
    return Series(unique, np.array(points.values, dtype=np.float64)[places], reasons, key.probe)


def all_keys(runs: Sequence[SeriesOf]) -> tuple[Key, ...]:
    """The series of all runs, those of the first run first."""
    return tuple(dict.fromkeys(key for series in runs for key in series))


def aligned(series: Mapping[str, Series | None]) -> pd.DataFrame:
    """One series of several runs side by side, by step. NaN where a run has none: nothing is interpolated."""
    columns = {
        label: pd.Series(one.values, index=one.steps, dtype="float64")
        if one is not None
        else pd.Series(index=pd.Index([], dtype="int64"), dtype="float64")
        for label, one in series.items()
    }
    return pd.DataFrame(columns).sort_index().rename_axis(index="step")


def is_clock(name: str) -> bool:
    """Whether a number tells of the machine (time, memory), which no two runs have alike.

    >>> [is_clock(name) for name in ("step_time", "seconds", "tokens_per_second", "loss", "timestep")]
    [True, True, True, False, False]
    """
    return _CLOCKS.search(name.lower()) is not None


_LOWEST = re.compile(r"(?:^|[^a-z])(?:loss|perplexity|nll)$|^loss/")
_HIGHEST = re.compile(r"accuracy(?!.*std$)")


def direction(name: str) -> str | None:
    """Which of a quantity's values is the best: the "lowest", the "highest"; None where a name does not tell.

    >>> [direction(name) for name in ("holdout_loss", "loss_std", "loss_scale", "train/accuracy", "norm")]
    ['lowest', None, None, 'highest', None]
    """
    name = name.lower()
    return "lowest" if _LOWEST.search(name) else "highest" if _HIGHEST.search(name) else None
