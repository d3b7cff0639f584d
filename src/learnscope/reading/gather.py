"""What findings and figures read: one pass over a run, and its numbers as series and grids."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.quantities import Quantities, Quantity, declared
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.updates import ParameterChange
from learnscope.record import Record, nonfinite
from learnscope.store.frame import frame_of
from learnscope.store.reader import RunReader

Floats = NDArray[np.float64]
_T = TypeVar("_T")

_OF_TENSORS = frozenset(
    quantity.name
    for quantity in (
        ParameterChange.visible_share, ParameterChange.update_to_weight, ParameterChange.sparsity,
        ParameterChange.nan, ParameterChange.inf, GradientFlow.first_nonfinite,
    )
)  # fmt: skip
"""The numbers per tensor that findings and figures read."""


class OnePass(RunReader):
    """A run whose records are read once, for many questions.

    Statistics per tensor are most of a run's bytes; only those that findings and figures read are kept.
    """

    def __init__(self, reader: RunReader) -> None:
        super().__init__(reader.backend)
        self._manifest = reader.manifest
        self._by_probe: dict[str, list[Record]] = defaultdict(list)
        self._answers: dict[object, Any] = {}
        self.numbers: Counter[str] = Counter()
        """How many numbers each probe recorded, with those that are not kept here."""
        self._records: list[Record] = []
        for record in reader.records():
            self.numbers[record.probe] += sum(len(table.scopes) * len(table.columns) for table in record.tables)
            self._records.append(_slim(record))
            self._by_probe[record.probe].append(self._records[-1])
        self._problems, self.last_counts = list(reader.last_problems), reader.last_counts

    @property
    def manifest(self) -> dict[str, Any]:
        return self._manifest

    @property
    def probes(self) -> list[str]:
        """The labels of the probes in the order in which they first fired."""
        return list(self._by_probe)

    def records(self, probe: str | None = None, *, superseded: bool = False) -> Iterator[Record]:
        if superseded and len(self._manifest.get("attempts") or []) > 1:
            yield from super().records(probe, superseded=True)
            return
        self.last_problems = list(self._problems)
        yield from self._records if probe is None else self._by_probe.get(probe, [])

    def frame(
        self, probe: str | None = None, name: str | None = None, kind: str | None = None,
        *, superseded: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """As of any reader, but the same question gets the same table again: do not write into it."""
        return self.remember(
            (probe, name, kind, superseded),
            lambda: frame_of(self.records(probe, superseded=superseded), name, kind),
        )

    def remember(self, question: object, answer: Callable[[], _T]) -> _T:
        """The result of `answer`, which is called once for each question."""
        if question not in self._answers:
            self._answers[question] = answer()
        result: _T = self._answers[question]
        return result


def one_pass(reader: RunReader) -> OnePass:
    """`reader` itself if it has its records already."""
    return reader if isinstance(reader, OnePass) else OnePass(reader)


def _slim(record: Record) -> Record:
    if class_of(record.probe) not in declared():
        return record
    tables = [
        replace(table, columns=[c for c in table.columns if c.name in _OF_TENSORS]) if table.kind == "tensor" else table
        for table in record.tables
    ]
    return replace(record, tables=tables)


def labels_of(reader: RunReader, probe: type[Quantities]) -> list[str]:
    """The labels under which probes of a class recorded: `Holdout`, and `Holdout_2` if there were two."""
    return [label for label in labels(reader) if class_of(label) == probe.probe]


def class_of(label: str) -> str:
    """
    >>> class_of("Holdout"), class_of("Holdout_2")
    ('Holdout', 'Holdout')
    """
    return re.sub(r"_\d+$", "", label)


def labels(reader: RunReader) -> list[str]:
    """The labels of all probes, those included that only failed."""
    return reader.probes if isinstance(reader, OnePass) else list(dict.fromkeys(r.probe for r in reader.records()))


def rows(
    reader: RunReader, quantity: Quantity, kind: str = "model", probe: str | None = None, **conditions: object
) -> pd.DataFrame:
    """The numbers of a quantity in the order of steps, one for each step, scope and set of labels.

    From all probes of the quantity's class, or from the one with the label `probe`. `conditions` select by label.
    """
    of_class = (label for label in labels(reader) if class_of(label) == quantity.probe)
    probes = tuple(of_class) if probe is None else (probe,)

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
        bad = np.array([nonfinite(status) is not None for status in self.status], dtype=bool)
        steps: NDArray[np.int64] = self.steps[bad]
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
    return as_series(rows(reader, quantity, kind, probe, **conditions))


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
    return as_grid(rows(reader, quantity, kind, None, **conditions), layers(reader))


def layers(reader: RunReader) -> list[str]:
    return (reader.manifest.get("model") or {}).get("layers") or []


def as_grid(frame: pd.DataFrame, order: Sequence[str] = ()) -> Grid:
    """From rows with one number for each step and scope; scopes in this order, then as they were recorded."""
    places = {scope: place for place, scope in enumerate(order)}
    scopes = sorted(dict.fromkeys(frame["scope"].tolist()), key=lambda scope: places.get(scope, len(places)))
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
