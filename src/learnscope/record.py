"""What a run stores: records made of small tables, and findings made from records.

A number that was not measured, or is not finite, is ``None`` with a status that says why; it is never 0.
This module needs only the standard library, so that a run can be read where torch is not installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1
"""Version of the run folder. A reader refuses a newer one and reads every older one."""

Label = str | int | float | bool
Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


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
    examples: Any = None
    """A ledger of examples; the run keeps the last one as its `examples.parquet`."""


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
        body: dict[str, Any] = {name: getattr(self, name) for name in HEADER}
        body |= {"time": round(self.time, 6), "cost": round(self.cost, 7)}
        body["tables"] = [_table_to_json(table) for table in self.tables]
        optional = {"arrays": self.arrays, "notes": dict(self.notes), "error": self.error}
        body |= {key: value for key, value in optional.items() if value}
        return json.dumps(body, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Record:
        body = json.loads(line)
        return cls(
            **{name: body[name] for name in HEADER},
            tables=[_table_from_json(table) for table in body["tables"]],
            arrays=body.get("arrays"),
            notes=body.get("notes", {}),
            error=body.get("error"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a finding is based on: which numbers, how many, between which steps, with which interval."""

    probe: str
    name: str
    n: int
    first_step: int | None = None
    last_step: int | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A statement about a run, its evidence, and what to do about it."""

    kind: str
    severity: Severity
    title: str
    detail: str
    advice: str
    evidence: Evidence
    scopes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        evidence = body.pop("evidence")
        return {**body, "scopes": list(self.scopes), "evidence": evidence}


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
            {int(position): reason for position, reason in column.get("status", {}).items()},
        )
        for column in body["columns"]
    ]
    return Table(body["kind"], body["scopes"], columns)
