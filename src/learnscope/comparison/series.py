"""The numbers of a run, a series for everything that was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.reading.gather import Floats, Series
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


@dataclass
class _Block:
    """The records of one quantity over the same scopes: a row a record."""

    steps: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    """When each was written, in numbers of records."""
    rows: list[Floats] = field(default_factory=list)
    reasons: dict[int, dict[int, str]] = field(default_factory=dict)
    """By position of the scope and number of the row, for values that are missing."""


class _Piece(NamedTuple):
    """What a block has of one series."""

    steps: NDArray[np.int64]
    turns: NDArray[np.int64]
    values: Floats
    reasons: Mapping[int, str]


def read_series(run: Run) -> dict[Key, Series]:
    """Every series of a run in the order of recording, without what a later attempt superseded.

    Of several numbers for one step the last counts.
    """
    # row by row and not number by number, which would take three times as long
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
    return {key: _joined(key, found) for key, found in pieces.items()}


def _joined(key: Key, pieces: Sequence[_Piece]) -> Series:
    """In the order of steps, with the last written of those that are equal."""
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
