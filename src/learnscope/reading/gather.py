"""What analyses and pictures read: one pass over a run, and its numbers as series and grids."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from learnscope.quantities import Quantities, Quantity, declared
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.updates import ParameterChange
from learnscope.record import Record, Table
from learnscope.store.frame import frame_of
from learnscope.store.reader import RunReader

Floats = NDArray[np.float64]
_T = TypeVar("_T")

NONFINITE = ("nan", "inf", "-inf")
"""The statuses of a value that was measured and is not finite; any other null was not measured."""

_OF_TENSORS = frozenset(
    quantity.name
    for quantity in (
        ParameterChange.visible_share, ParameterChange.update_to_weight, ParameterChange.sparsity,
        ParameterChange.nan, ParameterChange.inf, GradientFlow.first_nonfinite,
    )
)  # fmt: skip
"""Of the numbers per tensor, those that findings and figures read."""


class OnePass(RunReader):
    """The same run with its records read once, for the many questions that are then asked of them.

    Statistics per tensor are most of a run's bytes; only those that a question here needs are kept.
    """

    def __init__(self, reader: RunReader) -> None:
        super().__init__(reader.backend)
        self._manifest = reader.manifest
        self._kept: list[Record] = []
        self._by_probe: dict[str, list[Record]] = defaultdict(list)
        self._answers: dict[object, Any] = {}
        self.numbers: Counter[str] = Counter()
        """How many numbers each probe recorded, those included that are not kept here."""
        for record in reader.records():
            slim = _slim(record)
            self._kept.append(slim)
            self._by_probe[record.probe].append(slim)
            self.numbers[record.probe] += sum(len(table.scopes) * len(table.columns) for table in record.tables)
        self._seen_problems = list(reader.last_problems)

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
        self.last_problems = list(self._seen_problems)
        yield from self._kept if probe is None else self._by_probe.get(probe, [])

    def frame(
        self, probe: str | None = None, name: str | None = None, kind: str | None = None,
        *, superseded: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """As of any reader, but the same question gets the same table again: read it, do not write into it."""
        return self.remember(
            (probe, name, kind, superseded),
            lambda: frame_of(self.records(probe, superseded=superseded), name, kind),
        )

    def remember(self, question: object, answer: Callable[[], _T]) -> _T:
        """What `answer` gave the first time that it was asked for under this key."""
        if question not in self._answers:
            self._answers[question] = answer()
        found: _T = self._answers[question]
        return found


def one_pass(reader: RunReader) -> OnePass:
    """`reader` itself if it has its records already."""
    return reader if isinstance(reader, OnePass) else OnePass(reader)


def _slim(record: Record) -> Record:
    tables: list[Table] = []
    for table in record.tables:
        if table.kind == "tensor" and class_of(record.probe) in declared():
            table = replace(table, columns=[c for c in table.columns if c.name in _OF_TENSORS])
        tables.append(table)
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


def rows(reader: RunReader, quantity: Quantity, kind: str = "model", **wanted: object) -> pd.DataFrame:
    """The numbers of a quantity in the order of steps, from all probes of the class, one for each step and scope."""
    probe, name = quantity.probe, quantity.name
    if isinstance(reader, OnePass):
        question = ("rows", probe, name, kind, *sorted(wanted.items()))
        return reader.remember(question, lambda: _rows(reader, probe, name, kind, wanted))
    return _rows(reader, probe, name, kind, wanted)


def _rows(reader: RunReader, probe: str, name: str, kind: str, wanted: Mapping[str, object]) -> pd.DataFrame:
    frames = [reader.frame(label, name, kind) for label in labels(reader) if class_of(label) == probe]
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return reader.frame("", name, kind)
    frame = pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]
    for label, value in wanted.items():
        if label in frame:
            frame = frame[frame[label] == value]
    own = [c for c in frame.columns if c in ("step", "scope") or c in label_columns(frame)]
    return frame.drop_duplicates(own, keep="last").sort_values("step", kind="stable").reset_index(drop=True)


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
        keep = np.isfinite(self.values)
        status = [s for s, kept in zip(self.status, keep, strict=True) if kept]
        return Series(self.steps[keep], self.values[keep], status, self.probe)

    @property
    def broken(self) -> NDArray[np.int64]:
        """The steps at which it was measured and not finite."""
        found = [step for step, s in zip(self.steps.tolist(), self.status, strict=True) if s in NONFINITE]
        return np.array(found, dtype=np.int64)

    def at(self, step: int) -> float | None:
        found = self.values[self.steps == step]
        return float(found[-1]) if len(found) and np.isfinite(found[-1]) else None

    def __len__(self) -> int:
        return len(self.steps)


def series(reader: RunReader, quantity: Quantity, kind: str = "model", **wanted: object) -> Series:
    """A model-wide number over the steps; empty if it was not recorded."""
    return as_series(rows(reader, quantity, kind, **wanted))


def as_series(frame: pd.DataFrame) -> Series:
    status = [s if isinstance(s, str) else None for s in frame["status"].tolist()]
    probe = str(frame["probe"].iloc[-1]) if len(frame) else ""
    return Series(_integers(frame["step"]), frame["value"].to_numpy(np.float64), status, probe)


@dataclass(frozen=True)
class Grid:
    """One number over steps (down) and scopes (across), scopes in the model's order.

    A cell is NaN if the value is not there; `broken` tells the cells that were measured and are not finite.
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


def grid(reader: RunReader, quantity: Quantity, kind: str = "layer", **wanted: object) -> Grid:
    """A number of every layer (or other scope) at every measured step."""
    return as_grid(reader, rows(reader, quantity, kind, **wanted))


def as_grid(reader: RunReader, frame: pd.DataFrame) -> Grid:
    """Rows that have one number for each step and scope."""
    scopes = _in_order(frame, reader.manifest)
    steps = np.unique(_integers(frame["step"]))
    values = np.full((len(steps), len(scopes)), np.nan)
    broken = np.zeros(values.shape, dtype=bool)
    if len(frame):
        down = np.searchsorted(steps, _integers(frame["step"]))
        across = pd.Index(scopes).get_indexer(pd.Index(frame["scope"]))
        values[down, across] = frame["value"].to_numpy(np.float64)
        broken[down, across] = frame["status"].isin(NONFINITE).to_numpy(bool)
    return Grid(steps, scopes, values, broken, str(frame["probe"].iloc[-1]) if len(frame) else "")


def _in_order(frame: pd.DataFrame, manifest: dict[str, Any]) -> list[str]:
    """The model's own order where the manifest has it, then the order in which scopes were recorded."""
    seen = list(dict.fromkeys(frame["scope"].tolist()))
    known = {layer: place for place, layer in enumerate((manifest.get("model") or {}).get("layers") or [])}
    return sorted(seen, key=lambda scope: known.get(scope, len(known)))


def _integers(column: pd.Series[Any]) -> NDArray[np.int64]:
    return column.to_numpy(np.int64)
