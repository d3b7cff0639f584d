"""What is remembered: records made of small tables, and findings made from records.

A number that was not measured, or is not finite, is ``None`` with a status that says why; it is never 0.
This module needs only the standard library, so that a run can be read where torch is not installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

SCHEMA_VERSION = 1
"""Version of the run folder. A reader refuses a newer one and reads every older one."""

Label = str | int | float | bool
Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


class ProbeWarning(UserWarning):
    """Something about the watching, never about the training: a probe failed, was never due, was not fed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number: what (`name`), of what (`kind`, `scope`), under which conditions (`labels`)."""

    name: str
    value: Any
    scope: str = "model"
    kind: str = "model"
    labels: Mapping[str, Label] = field(default_factory=dict)
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity over the scopes of a table.

    `values` may be a tensor until the session reads it, so that a probe need not wait for its device.
    `status` gives, by position, the reason for a value that is ``None``.
    """

    name: str
    values: Any
    labels: Mapping[str, Label] = field(default_factory=dict)
    status: Mapping[int, str] = field(default_factory=dict)

    def finished(self, values: Sequence[float | int | None]) -> Column:
        """The column with plain numbers; what is not finite becomes ``None`` with its status."""
        if all(v is not None and math.isfinite(v) for v in values):
            return Column(self.name, list(values), self.labels, dict(self.status))
        clean: list[float | int | None] = []
        status = dict(self.status)
        for position, value in enumerate(values):
            if value is not None and not math.isfinite(value):
                status.setdefault(position, _nonfinite_name(value))
                value = None
            elif value is None:
                status.setdefault(position, "not measured")
            clean.append(value)
        return replace(self, values=clean, status=status)


@dataclass(frozen=True, slots=True)
class Table:
    """Several quantities over the same scopes: a 148-tensor table is one of these, not 1,600 dictionaries."""

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
    """What a probe may return when it has more than numbers: arrays for the side files, and notes."""

    tables: Sequence[Table] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[Sequence[Table]], Sequence[Table]] | None = None
    """Applied to the tables once their numbers have been read, for what depends on the numbers."""
    examples: Any = None
    """A ledger of examples, which the run keeps as its `examples.parquet`, the last one only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One firing of one probe.

    `step` counts finished optimizer steps, `phase` is the moment of the loop, `cost` the seconds the firing
    took, `notes` what else a reader must know (the span of a delta, firings that a budget skipped).
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
        body: dict[str, Any] = {
            "probe": self.probe,
            "step": self.step,
            "epoch": self.epoch,
            "phase": self.phase,
            "source": self.source,
            "attempt": self.attempt,
            "time": round(self.time, 6),
            "cost": round(self.cost, 7),
            "tables": [_table_to_json(table) for table in self.tables],
        }
        for key in ("arrays", "notes", "error"):
            value = getattr(self, key)
            if value:
                body[key] = dict(value) if key == "notes" else value
        return json.dumps(body, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Record:
        body = json.loads(line)
        return cls(
            probe=body["probe"],
            step=body["step"],
            epoch=body["epoch"],
            phase=body["phase"],
            source=body["source"],
            attempt=body["attempt"],
            time=body["time"],
            cost=body["cost"],
            tables=[_table_from_json(table) for table in body["tables"]],
            arrays=body.get("arrays"),
            notes=body.get("notes", {}),
            error=body.get("error"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a finding comes from: which numbers, how many of them, between which steps, how sure."""

    probe: str
    name: str
    n: int
    first_step: int | None = None
    last_step: int | None = None
    value: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A statement about a run, what it rests on, and what to do about it."""

    kind: str
    severity: Severity
    title: str
    detail: str
    advice: str
    evidence: Evidence
    scopes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        evidence = {name: getattr(self.evidence, name) for name in Evidence.__slots__}
        return {
            "kind": self.kind,
            "severity": self.severity,
            "title": self.title,
            "detail": self.detail,
            "advice": self.advice,
            "scopes": list(self.scopes),
            "evidence": evidence,
        }


def _nonfinite_name(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


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
