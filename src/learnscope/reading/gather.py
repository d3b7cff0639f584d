"""What findings and figures read: one pass over a run, and its numbers as series and grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.quantities import Quantities, Quantity
from learnscope.reading.numbers import Numbers, numbers_of
from learnscope.record import Record, nonfinite
from learnscope.store.columnar.column_frame import frame_from
from learnscope.store.columnar.columns import Columns
from learnscope.store.reader import RunReader

Floats = NDArray[np.float64]
_T = TypeVar("_T")
_ROWS_KEPT = 20_000
"""Rows up to which a table is kept for the next question; a longer one is made again, so that memory does not grow."""


class OnePass(RunReader):
    """A run that is opened once, for many questions: each reads the numbers that it is about, and is answered once."""

    def __init__(self, reader: RunReader) -> None:
        super().__init__(reader.backend)
        self._manifest = reader.manifest
        self._columns = reader.columns()
        superseding = len(self._columns.starts) > 1
        self._all = replace(self._columns, starts={}) if superseding else self._columns
        self._answers: dict[object, Any] = {}
        self._problems, self.last_counts = list(reader.last_problems), reader.last_counts
        self.last_problems = list(self._problems)

    @property
    def manifest(self) -> dict[str, Any]:
        return self._manifest

    @property
    def probes(self) -> list[str]:
        """The labels of the probes in the order in which they first fired."""
        return self._columns.heads.probes

    @property
    def numbers(self) -> Counter[str]:
        """How many numbers each probe recorded."""
        heads = self._columns.heads
        totals = np.bincount(heads.probe, heads.numbers, len(heads.probes)).astype(int).tolist()
        return Counter(dict(zip(heads.probes, totals, strict=True)))

    def columns(self, *, superseded: bool = False) -> Columns:
        self.last_problems = list(self._problems)
        return self._all if superseded else self._columns

    def records(self, probe: str | None = None, *, superseded: bool = False) -> Iterator[Record]:
        return self.columns(superseded=superseded).records(probe)

    def frame(
        self, probe: str | None = None, name: str | None = None, kind: str | None = None,
        *, superseded: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """As of any reader, but the same question gets the same table again: do not write into it."""
        return self.remember(
            (probe, name, kind, superseded),
            lambda: frame_from(self.columns(superseded=superseded), probe, name, kind),
        )

    def remember(self, question: object, answer: Callable[[], _T]) -> _T:
        """The result of `answer`, which is called once for each question, unless it is a long table."""
        if question in self._answers:
            known: _T = self._answers[question]
            return known
        result = answer()
        if not (isinstance(result, pd.DataFrame) and len(result) > _ROWS_KEPT):
            self._answers[question] = result
        return result


def one_pass(reader: RunReader) -> OnePass:
    """`reader` itself if it has its records already."""
    return reader if isinstance(reader, OnePass) else OnePass(reader)


def labels_of(reader: RunReader, probe: type[Quantities]) -> list[str]:
    """The labels under which probes of a class recorded: `Holdout`, and `Holdout_2` if there were two."""
    return [label for label in labels(reader) if class_of(label) == probe.probe]


def class_of(label: str) -> str:
    """
    >>> class_of("Holdout"), class_of("Holdout_2")
    ('Holdout', 'Holdout')
    """
    name, mark, number = label.rpartition("_")
    return name if mark and number.isdecimal() else label


def labels(reader: RunReader) -> list[str]:
    """The labels of all probes, those included that only failed."""
    return reader.columns().heads.probes


def rows(
    reader: RunReader, quantity: Quantity, kind: str = "model", probe: str | None = None, **conditions: object
) -> pd.DataFrame:
    """The numbers of a quantity in the order of steps, one for each step, scope and set of labels.

    From all probes of the quantity's class, or from the one with the label `probe`. `conditions` select by label.
    """
    probes = _probes(reader, quantity, probe)

    def read() -> pd.DataFrame:
        frames = [frame for label in probes if len(frame := reader.frame(label, quantity.name, kind))]
        if not frames:
            return reader.frame("", quantity.name, kind)
        frame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
        for label, value in conditions.items():
            if label in frame and frame[label].notna().any():  # a declared label may have been recorded by nobody
                frame = frame[frame[label] == value]
        return last_of_each(frame).reset_index(drop=True)

    question = ("rows", probes, quantity.name, kind, *sorted(conditions.items()))
    return reader.remember(question, read) if isinstance(reader, OnePass) else read()


def _probes(reader: RunReader, quantity: Quantity, probe: str | None) -> tuple[str, ...]:
    of_class = (label for label in labels(reader) if class_of(label) == quantity.probe)
    return tuple(of_class) if probe is None else (probe,)


def _numbers(
    reader: RunReader, quantity: Quantity, kind: str, probe: str | None, conditions: Mapping[str, object]
) -> Numbers | None:
    """The same as `rows`, as arrays; None if there is no other way than a table."""
    probes = _probes(reader, quantity, probe)

    def read() -> Numbers | None:
        return numbers_of(reader.columns(), probes, quantity.name, kind, conditions)

    question = ("numbers", probes, quantity.name, kind, *sorted(conditions.items()))
    return reader.remember(question, read) if isinstance(reader, OnePass) else read()


def labelled(reader: RunReader, quantity: Quantity, label: str, kind: str = "model") -> list[Any]:
    """The values of a label that a quantity was recorded with, in the order of writing."""
    columns = reader.columns()
    if any(columns.loose(probe) for probe in _probes(reader, quantity, None)):
        frame = rows(reader, quantity, kind)
        return frame[label].dropna().unique().tolist() if label in frame else []
    parts = [part for probe in _probes(reader, quantity, None) for part in columns.chosen(probe)]
    found = [
        column.labels.get(label)
        for part in sorted(parts, key=lambda part: int(part.order[0]))
        for column in part.form.columns
        if (column.name, column.kind) == (quantity.name, kind) and column.scopes
    ]
    return [value for value in dict.fromkeys(found) if value is not None]


def last_of_each(frame: pd.DataFrame) -> pd.DataFrame:
    """The last row of each step, scope and set of labels, in the order of steps."""
    last = frame.drop_duplicates(["step", "scope", *label_columns(frame)], keep="last")
    return last.sort_values("step", kind="stable")


def label_columns(frame: pd.DataFrame) -> list[str]:
    """The columns that are labels: those after the last fixed one."""
    columns = list(frame.columns)
    return columns[columns.index("cost") + 1 :]


@dataclass(frozen=True)
class Series:
    """One number over the steps. A value that is NaN has its reason in `status`."""

    steps: NDArray[np.int64]
    values: Floats
    status: list[str | None]
    probe: str = ""

    @property
    def finite(self) -> Series:
        """Without what was not measured or is not finite."""
        finite = np.isfinite(self.values)
        return Series(self.steps[finite], self.values[finite], list(compress(self.status, finite)), self.probe)

    @property
    def broken(self) -> NDArray[np.int64]:
        """The steps at which it was measured and not finite."""
        bad = {status for status in set(self.status) if nonfinite(status) is not None}
        steps: NDArray[np.int64] = self.steps[[place for place, s in enumerate(self.status) if s in bad] if bad else []]
        return steps

    def at(self, step: int) -> float | None:
        values = self.values[self.steps == step]
        return float(values[-1]) if len(values) and np.isfinite(values[-1]) else None

    def __len__(self) -> int:
        return len(self.steps)


def series(
    reader: RunReader, quantity: Quantity, kind: str = "model", probe: str | None = None, **conditions: object
) -> Series:
    """A model-wide number over the steps; empty if it was not recorded."""
    numbers = _numbers(reader, quantity, kind, probe, conditions)
    if numbers is None:
        return as_series(rows(reader, quantity, kind, probe, **conditions))
    return Series(numbers.steps, numbers.values, numbers.reasons, numbers.probe)


def as_series(frame: pd.DataFrame) -> Series:
    status = [s if isinstance(s, str) else None for s in frame["status"].tolist()]
    return Series(frame["step"].to_numpy(np.int64), frame["value"].to_numpy(np.float64), status, _probe(frame))


def _probe(frame: pd.DataFrame) -> str:
    return str(frame["probe"].iloc[-1]) if len(frame) else ""


@dataclass(frozen=True)
class Grid:
    """One number over steps (down) and scopes (across), scopes in the model's order.

    A cell without a value is NaN; `broken` marks those that were measured and are not finite.
    """

    steps: NDArray[np.int64]
    scopes: list[str]
    values: Floats
    broken: NDArray[np.bool_]
    probe: str = ""

    def __bool__(self) -> bool:
        return self.values.size > 0

    def aligned(self, other: Grid) -> Floats:
        """The values at the steps and scopes of another grid, NaN where this one has none."""
        frame = pd.DataFrame(self.values, index=self.steps, columns=self.scopes)
        return frame.reindex(index=other.steps, columns=other.scopes).to_numpy(np.float64)

    def of(self, scope: str) -> Series:
        values = self.values[:, self.scopes.index(scope)]
        return Series(self.steps, values, [None] * len(values), self.probe)


def grid(reader: RunReader, quantity: Quantity, kind: str = "layer", **conditions: object) -> Grid:
    """A number of every layer (or other scope) at every measured step."""
    numbers = _numbers(reader, quantity, kind, None, conditions)
    if numbers is None:
        return as_grid(rows(reader, quantity, kind, None, **conditions), layers(reader))
    return _grid(numbers, layers(reader))


def _grid(numbers: Numbers, order: Sequence[str]) -> Grid:
    scopes = ordered(numbers.in_order_of_appearance(), order)
    place = {scope: place for place, scope in enumerate(scopes)}
    across = np.array([place.get(scope, -1) for scope in numbers.scopes], np.int64)
    new = np.diff(numbers.steps, prepend=numbers.steps[:1] - 1) != 0
    down = np.cumsum(new) - 1
    values = np.full((int(new.sum()), len(scopes)), np.nan)
    broken = np.zeros(values.shape, dtype=bool)
    if len(numbers.steps):
        values[down, across[numbers.scope]] = numbers.values
        broken[down, across[numbers.scope]] = numbers.broken
    return Grid(numbers.steps[new], scopes, values, broken, numbers.probe)


def ordered(scopes: Sequence[str], order: Sequence[str]) -> list[str]:
    """Those of `order` first, as there; then the others, as they are."""
    places = {scope: place for place, scope in enumerate(order)}
    return sorted(scopes, key=lambda scope: places.get(scope, len(places)))


def layers(reader: RunReader) -> list[str]:
    return (reader.manifest.get("model") or {}).get("layers") or []


def as_grid(frame: pd.DataFrame, order: Sequence[str] = ()) -> Grid:
    """From rows with one number for each step and scope; scopes in this order, then as they were recorded."""
    scopes = ordered(list(dict.fromkeys(frame["scope"].tolist())), order)
    steps, down = np.unique(frame["step"].to_numpy(np.int64), return_inverse=True)
    across = pd.Index(scopes, dtype=object).get_indexer(pd.Index(frame["scope"], dtype=object))
    values = np.full((len(steps), len(scopes)), np.nan)
    broken = np.zeros(values.shape, dtype=bool)
    values[down, across] = frame["value"].to_numpy(np.float64)
    broken[down, across] = is_nonfinite(frame["status"])
    return Grid(steps, scopes, values, broken, _probe(frame))


def is_nonfinite(status: pd.Series[Any]) -> NDArray[np.bool_]:
    """Which of these are the statuses of values that were measured and are not finite."""
    bad = [text for text in status.dropna().unique() if nonfinite(text)]
    return status.isin(bad).to_numpy(bool)
