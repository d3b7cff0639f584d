"""Records of an audit as dictionaries of plain numbers: NaN is "not measured", and `reasons` beside it says why."""

from __future__ import annotations

import math
from typing import Any

from learnscope.reading.audit_numbers import Entry, entries_of
from learnscope.record import Record


def values_of(entry: Entry) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in entry.values.items()}


def entries(record: Record, kind: str) -> dict[str, list[dict[str, Any]]]:
    """The numbers of a kind by scope, one dictionary per set of labels; `reasons` only where a number is missing."""
    by_scope: dict[str, list[dict[str, Any]]] = {}
    for entry in entries_of([record]):
        if entry.kind == kind:
            reasons = {"reasons": entry.reasons} if entry.reasons else {}
            by_scope.setdefault(entry.scope, []).append({**entry.labels, **values_of(entry), **reasons})
    return by_scope


def by_scope(record: Record, kind: str) -> dict[str, dict[str, Any]]:
    """The same for a kind whose scopes have one set of labels each."""
    return {scope: entry for scope, [entry] in entries(record, kind).items()}
