"""The numbers of a run as series, one for each quantity, scope and set of labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.quantities import quantity_of
from learnscope.reading.gather import Series, class_of
from learnscope.record import Column, Label
from learnscope.run import Run

_CLOCKS = re.compile(
    r"(?:^|[^a-z])(?:time|timestamp|duration|elapsed|seconds?|secs?|ms|throughput|memory|rss)(?:$|[^a-z])|per_sec"
)


class Key(NamedTuple):
    """Identifies a series, in the same way in every run."""

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


def read_series(run: Run) -> dict[Key, Series]:
    """Every series of a run in the order of recording, without what a later attempt superseded.

    A later number for the same step replaces an earlier one.
    """
    # the records of one quantity over the same scopes form a matrix; number by number would take three times as long
    blocks: dict[tuple[Any, ...], list[tuple[int, int, Column]]] = {}
    for turn, record in enumerate(run.records()):
        for table in record.tables:
            for column in table.columns:
                labels = tuple(sorted(column.labels.items()))
                block = (record.probe, table.kind, tuple(table.scopes), column.name, labels)
                blocks.setdefault(block, []).append((record.step, turn, column))
    parts: dict[Key, list[tuple[NDArray[Any], ...]]] = {}
    for (probe, kind, scopes, name, labels), rows in blocks.items():
        steps, turns = (np.array([row[n] for row in rows], np.int64) for n in range(2))
        values = np.array([column.values for *_, column in rows], dtype=np.float64)  # None becomes NaN
        reasons = np.full(values.shape, None, dtype=object)
        for n, (*_, column) in enumerate(rows):
            for position, reason in column.status.items():
                reasons[n, position] = reason
        for position, scope in enumerate(scopes):
            part = (steps, turns, values[:, position], reasons[:, position])
            parts.setdefault(Key(probe, kind, scope, name, labels), []).append(part)
    series = {}
    for key, blocks_of_key in parts.items():
        steps, turns, values, reasons = (np.concatenate(columns) for columns in zip(*blocks_of_key, strict=True))
        order = np.lexsort((turns, steps))
        last = order[np.append(np.diff(steps[order]) > 0, True)]
        series[key] = Series(steps[last], values[last], reasons[last].tolist(), key.probe)
    return series


def aligned(series: Iterable[tuple[str, Series | None]]) -> pd.DataFrame:
    """One series of several runs side by side, by step. NaN where a run has none: nothing is interpolated."""
    nothing = Series(np.empty(0, np.int64), np.empty(0), [])
    columns = {label: pd.Series((run or nothing).values, (run or nothing).steps) for label, run in series}
    return pd.DataFrame(columns).sort_index().rename_axis(index="step")


def is_clock(name: str) -> bool:
    """Whether a name is of a time or of memory, which differ from run to run.

    >>> [is_clock(name) for name in ("step_time", "seconds", "tokens_per_second", "loss", "timestep")]
    [True, True, True, False, False]
    """
    return _CLOCKS.search(name.lower()) is not None


_LOWEST = re.compile(r"(?:^|[^a-z])(?:loss|perplexity|nll)$|^loss/")
_HIGHEST = re.compile(r"accuracy(?!.*std$)")


def direction(key: Key) -> str | None:
    """Whether the best value of a series is the "lowest" or the "highest"; None if neither.

    As its quantity declares; by its name for a number that is not declared.

    >>> logged = [Key("Loss", "model", "model", name) for name in ("val_loss", "loss_std", "train/accuracy")]
    >>> [direction(key) for key in (*logged, Key("LossLandscape", "model", "model", "loss"))]
    ['lowest', None, 'highest', 'lowest']
    """
    quantity = quantity_of(class_of(key.probe), key.name)
    if quantity is not None and quantity.better is not None:
        return {"lower": "lowest", "higher": "highest"}[quantity.better]
    name = key.name.lower()
    return "lowest" if _LOWEST.search(name) else "highest" if _HIGHEST.search(name) else None
