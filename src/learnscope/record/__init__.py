"""What a run stores: records made of small tables, and findings made from records.

A number that was not measured, or is not finite, is ``None`` with a status that says why; it is never 0.
This module needs only the standard library, so that a run can be read where torch is not installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from learnscope.characters import visible_json
from learnscope.record.finding import SEVERITIES, Evidence, Finding, Severity

__all__ = [
    "HEADER", "NONFINITE", "SCHEMA_VERSION", "SEVERITIES", "SKIPPED", "Column", "Evidence", "Finding", "Label",
    "Measurement", "ProbeWarning", "Record", "Row", "Severity", "Table", "nonfinite", "plain_json",
]  # fmt: skip

SCHEMA_VERSION = 1
"""Version of the run folder. A reader refuses a newer one and reads every older one."""

Label = str | int | float | bool

NONFINITE = ("nan", "inf", "-inf")
"""The statuses of a value that was measured and is not finite, `nan: …` where more is known; other nulls were not."""


def nonfinite(status: str | None) -> str | None:
    """`nan`, `inf` or `-inf` if this is the status of a value that was measured and is not finite.

    >>> nonfinite("nan: the loss of one position"), nonfinite("inf"), nonfinite("not measured")
    ('nan', 'inf', None)
    """
    value = None if status is None else status.partition(":")[0]
    return value if value in NONFINITE else None


SKIPPED = "skipped"
"""The phase of a record about a step that had not been taken when it was written, and may never have been."""


class ProbeWarning(UserWarning):
    """A problem with the measurements, never with the training: a probe failed, was never due, got no data."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number: what it is (`name`), what it belongs to (`kind`, `scope`), under which conditions (`labels`)."""

    name: str
    value: Any
    scope: str = "model"
    kind: str = "model"
    labels: Mapping[str, Label] = field(default_factory=dict)
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity over the scopes of a table.

    `values` may be a tensor until the session reads it, so that a probe needs no host sync.
    `status` gives, by position, the reason for a value that is ``None``.
    """

    name: str
    values: Any
    labels: Mapping[str, Label] = field(default_factory=dict)
    status: Mapping[int, str] = field(default_factory=dict)

    def finished(self, values: Sequence[float | int | None]) -> Column:
        """The column with plain numbers; values that are not finite become ``None`` with a status."""
        try:
            if not self.status and math.isfinite(sum(values)):  # type: ignore[arg-type]
                return Column(self.name, values, self.labels)  # all are finite
        except (TypeError, OverflowError):
            pass  # one is missing, or a whole number is beyond floats
        clean, status = list(values), dict(self.status)
        for position, value in enumerate(values):
            if value is None:
                status.setdefault(position, "not measured")
            elif not math.isfinite(value):
                status.setdefault(position, str(float(value)))
                clean[position] = None
        return Column(self.name, clean, self.labels, status)


@dataclass(frozen=True, slots=True)
class Table:
    """Several quantities over the same scopes: one object for 148 tensors, not 1,600 dictionaries."""

    kind: str
    scopes: Sequence[str]
    columns: Sequence[Column]

    def rows(self) -> Iterator[Row]:
        for column in self.columns:
            for position, scope in enumerate(self.scopes):
                value = column.values[position]
                yield Row(column.name, value, scope, self.kind, column.labels, column.status.get(position))


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a probe returns if it has more than numbers: arrays, which get files of their own, and notes."""

    tables: Sequence[Table] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[Sequence[Table]], Sequence[Table]] | None = None
    """Applied to the tables once their values have been read, for what depends on the values."""
    packed: Mapping[str, Any] = field(default_factory=dict)
    """Small tensors of its own, read as float64, of which `unpack` makes tables; the first tells if all is finite."""
    unpack: Callable[[Mapping[str, Any]], Sequence[Table]] | None = None
    examples: Any = None
    """A ledger of examples; the run keeps the last one as its `examples.parquet`."""


_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
HEADER = ("probe", "step", "epoch", "phase", "source", "attempt", "time", "cost")
"""The keys that every recorded line has besides its tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One firing of one probe.

    `step` counts finished optimizer steps, `phase` is the moment in the loop, `cost` the seconds the firing
    took, `notes` other facts a reader needs (the span of a delta, firings that a budget skipped).
    """

    probe: str
    step: int
    phase: str
    source: str
    time: float
    cost: float
    epoch: int | None = None
    attempt: int = 0
    tables: Sequence[Table] = ()
    arrays: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def rows(self) -> Iterator[Row]:
        for table in self.tables:
            yield from table.rows()

    def to_json(self) -> str:
        """One strict JSON object on one line."""
        return visible_json(_ENCODE(self.body() | {"time": round(self.time, 6), "cost": round(self.cost, 7)}))

    def body(self) -> dict[str, Any]:
        """All that the record has, as JSON can hold it."""
        body: dict[str, Any] = {
            "probe": self.probe, "step": self.step, "epoch": self.epoch, "phase": self.phase, "source": self.source,
            "attempt": self.attempt, "time": self.time, "cost": self.cost, "tables": [*map(_table_to_json, self.tables)]
        }  # fmt: skip
        optional = (("arrays", self.arrays), ("notes", dict(self.notes)), ("error", self.error))
        return body | {key: value for key, value in optional if value}

    @classmethod
    def from_json(cls, line: str | bytes) -> Record:
        """What `to_json` wrote. A line of another shape is refused with a ValueError that says what is wrong."""
        body = json.loads(visible_json(line if isinstance(line, str) else line.decode()))
        _check_shape(body)
        return cls(
            **{name: body[name] for name in HEADER},
            tables=[_table_from_json(table) for table in body["tables"]],
            arrays=body.get("arrays"),
            notes=body.get("notes", {}),
            error=body.get("error"),
        )


def plain_json(
    value: Any, *, nonfinite: Callable[[float], Any] = lambda _number: None, other: Callable[[Any], Any] | None = None
) -> Any:
    """`value` as strict JSON can hold it: keys as text, tensors and arrays as lists, any other object as its text.

    `nonfinite` says what stands for a number that is not finite, `other` for what JSON has no form for; both may raise.

    >>> plain_json({"a": float("nan"), 1: (2, {3})})
    {'a': None, '1': [2, '{3}']}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else nonfinite(value)
    if isinstance(value, Mapping):
        return {str(key): plain_json(item, nonfinite=nonfinite, other=other) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, nonfinite=nonfinite, other=other) for item in value]
    if other is not None:
        return other(value)
    return plain_json(value.tolist(), nonfinite=nonfinite) if hasattr(value, "tolist") else str(value)


def _table_to_json(table: Table) -> dict[str, Any]:
    columns = []
    for column in table.columns:
        body: dict[str, Any] = {"name": column.name, "values": column.values}
        if column.labels:
            body["labels"] = dict(column.labels)
        if column.status:
            body["status"] = {str(position): reason for position, reason in column.status.items()}
        columns.append(body)
    return {"kind": table.kind, "scopes": list(table.scopes), "columns": columns}


def _table_from_json(body: Mapping[str, Any]) -> Table:
    columns = [
        Column(
            column["name"],
            column["values"],
            column.get("labels", {}),
            {int(place): reason for place, reason in column["status"].items()} if "status" in column else {},
        )
        for column in body["columns"]
    ]
    return Table(body["kind"], body["scopes"], columns)


_NUMBER = (int, float)
_SHAPE: dict[str, tuple[type, ...]] = {
    "probe": (str,), "step": (int,), "epoch": (int, type(None)), "phase": (str,), "source": (str,), "attempt": (int,),
    "time": _NUMBER, "cost": _NUMBER, "tables": (list,), "arrays": (str, type(None)), "notes": (dict,),
    "error": (str, type(None)),
}  # fmt: skip
_VALUES, _LABELS, _LARGEST = {int, float, type(None)}, {str, int, float, bool, type(None)}, 2**63


def _check_shape(body: Any) -> None:
    """Raise a ValueError unless a line's body is a record."""
    if type(body) is not dict:
        raise ValueError("not a JSON object")
    for name, value in body.items():
        if name in _SHAPE and type(value) not in _SHAPE[name]:
            raise ValueError(f"{name} is {_shown(value)}")
    for name in ("step", "attempt", "epoch"):
        if not -_LARGEST <= (body[name] or 0) < _LARGEST:
            raise ValueError(f"{name} is {_shown(body[name])}")
    for table in body["tables"]:
        if type(table["kind"]) is not str or type(table["scopes"]) is not list or type(table["columns"]) is not list:
            raise ValueError("a table is not a kind, scopes and columns")
        if not {str}.issuperset(map(type, table["scopes"])):
            raise ValueError(f"a scope of {table['kind']} is not text")
        for column in table["columns"]:
            _check_column(column, len(table["scopes"]))


def _check_column(column: Any, scopes: int) -> None:
    name, values = column["name"], column["values"]
    if type(name) is not str or type(values) is not list:
        raise ValueError("a column is not a name with values")
    if len(values) != scopes or not _VALUES.issuperset(map(type, values)):
        raise ValueError(f"{name} has {len(values)} values, not {scopes} numbers")
    if "labels" in column:
        labels = column["labels"]
        if type(labels) is not dict or not _LABELS.issuperset(map(type, labels.values())):
            raise ValueError(f"the labels of {name} are {_shown(labels)}")
    if "status" in column:
        status = column["status"]
        if type(status) is not dict or not {str}.issuperset(map(type, status.values())):
            raise ValueError(f"the status of {name} is {_shown(status)}")
        if any(not 0 <= int(position) < scopes for position in status):
            raise ValueError(f"the status of {name} is of values that are not there")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, dict | list) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}…"
