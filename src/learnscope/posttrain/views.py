"""Records of an audit as dictionaries of plain numbers: NaN is "not measured", and `reasons` beside it says why."""

from __future__ import annotations

import math
from typing import Any

from learnscope.record import Record, Row

Entry = dict[str, Any]


def number(row: Row, reasons: dict[str, str], key: str | None = None) -> Any:
    """The value under its key; NaN, and its reason, where there is none."""
    if row.value is None:
        reasons[key or row.name] = row.status or "not measured"
        return math.nan
    return row.value


def entries(record: Record, kind: str) -> dict[str, list[Entry]]:
    """The numbers of a kind by scope, those of the same labels together; `reasons` only where a number is missing."""
    by_scope: dict[str, dict[Any, Entry]] = {}
    for row in record.rows():
        if row.kind == kind:
            key = tuple(sorted(row.labels.items()))
            entry = by_scope.setdefault(row.scope, {}).setdefault(key, dict(row.labels))
            reasons: dict[str, str] = {}
            entry[row.name] = number(row, reasons)
            if reasons:
                entry.setdefault("reasons", {}).update(reasons)
    return {scope: list(by_labels.values()) for scope, by_labels in by_scope.items()}


def by_scope(record: Record, kind: str) -> dict[str, Entry]:
    """The same where a scope has numbers under one set of labels only."""
    return {scope: entry for scope, [entry] in entries(record, kind).items()}
