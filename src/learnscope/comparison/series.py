"""The numbers of a run as series, one for each quantity, scope and set of labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.quantities import quantity_of
from learnscope.reading.gather import Floats, Series, class_of
from learnscope.record import Label
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


@dataclass
class _Block:
    """The records of one quantity over the same scopes, a row for each."""

    steps: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    """The position of each record in the run."""
    rows: list[Floats] = field(default_factory=list)
    reasons: dict[int, dict[int, str]] = field(default_factory=dict)
    """Why values are missing, by position of the scope and number of the row."""


class _Piece(NamedTuple):
    """The part of a block that belongs to one series."""

    steps: NDArray[np.int64]
    turns: NDArray[np.int64]
    values: Floats
    reasons: Mapping[int, str]


def read_series(run: Run) -> dict[Key, Series]:
    """Every series of a run in the order of recording, without what a later attempt superseded.

    Of several numbers for the same step the last counts.
    """
    # row by row: number by number would take three times as long
    blocks: dict[tuple[Any, ...], _Block] = {}
    for turn, record in enumerate(run.records()):
        for table in record.tables:
            scopes = tuple(table.scopes)
            for column in table.columns:
                labels = tuple(sorted(column.labels.items()))
                block = blocks.setdefault((record.probe, table.kind, scopes, column.name, labels), _Block())
                for position, reason in column.status.items():
                    block.reasons.setdefault(position, {})[len(block.rows)] = reason
                block.steps.append(record.step)
                block.turns.append(turn)
                block.rows.append(np.array(column.values, dtype=np.float64))  # None becomes NaN
    pieces: dict[Key, list[_Piece]] = {}
    for (probe, kind, scopes, name, labels), block in blocks.items():
        steps, turns = np.array(block.steps, np.int64), np.array(block.turns, np.int64)
        values = np.ascontiguousarray(np.stack(block.rows, axis=1))
        for position, scope in enumerate(scopes):
            piece = _Piece(steps, turns, values[position], block.reasons.get(position, {}))
            pieces.setdefault(Key(probe, kind, scope, name, labels), []).append(piece)
    return {key: _joined(key, parts) for key, parts in pieces.items()}


def _joined(key: Key, pieces: Sequence[_Piece]) -> Series:
    """Sorted by step; of equal steps the last written."""
    steps, turns, values = (np.concatenate([piece[n] for piece in pieces]) for n in range(3))
    reasons: list[str | None] = []
    for piece in pieces:
        start = len(reasons)
        reasons += [None] * len(piece.steps)
        for row, reason in piece.reasons.items():
            reasons[start + row] = reason
    order = np.lexsort((turns, steps))
    last = np.append(np.diff(steps[order]) > 0, True)
    kept = order[last]
    return Series(steps[kept], values[kept], [reasons[place] for place in kept.tolist()], key.probe)


def all_keys(runs: Sequence[SeriesOf]) -> tuple[Key, ...]:
    """The series of all runs, those of the first run first."""
    return tuple(dict.fromkeys(key for series in runs for key in series))


def aligned(series: Mapping[str, Series | None]) -> pd.DataFrame:
    """One series of several runs side by side, by step. NaN where a run has none: nothing is interpolated."""
    columns = {
        label: pd.Series(values.values, index=values.steps, dtype="float64")
        if values is not None
        else pd.Series(index=pd.Index([], dtype="int64"), dtype="float64")
        for label, values in series.items()
    }
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
    """Which of a series' values is the best: the "lowest", the "highest"; None where neither is.

    As the quantity is declared; where that says nothing, as of the user's own numbers, as the name tells.

    >>> logged = [Key("Loss", "model", "model", name) for name in ("val_loss", "loss_std", "train/accuracy")]
    >>> [direction(key) for key in (*logged, Key("LossLandscape", "model", "model", "loss"))]
    ['lowest', None, 'highest', 'lowest']
    """
    quantity = quantity_of(class_of(key.probe), key.name)
    if quantity is not None and quantity.better is not None:
        return {"lower": "lowest", "higher": "highest"}[quantity.better]
    name = key.name.lower()
    return "lowest" if _LOWEST.search(name) else "highest" if _HIGHEST.search(name) else None
