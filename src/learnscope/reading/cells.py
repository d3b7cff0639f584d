"""Single numbers of one record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from learnscope.quantities import Quantity
from learnscope.quantities.examples import ExampleLedger as Q
from learnscope.record import Column, Record, Table

Value = float | int | None


def value(record: Record, quantity: Quantity, scope: str | None = None, **labels: Any) -> Value:
    """One number of a record; None if it was not measured or is not there."""
    for table, column in _columns(record, quantity, labels):
        for here, number in zip(table.scopes, column.values, strict=True):
            if scope is None or here == scope:
                return number  # type: ignore[no-any-return]
    return None


def by_scope(record: Record, kind: str, quantity: Quantity, **labels: Any) -> tuple[dict[str, float], dict[str, str]]:
    """One number of every scope of a kind, NaN where it is missing, and why it is."""
    numbers: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for table, column in _columns(record, quantity, labels):
        if table.kind == kind:
            for place, (scope, number) in enumerate(zip(table.scopes, column.values, strict=True)):
                numbers[scope] = math.nan if number is None else float(number)
                if number is None:
                    reasons[scope] = column.status.get(place, "not measured")
    return numbers, reasons


def _columns(record: Record, quantity: Quantity, labels: Mapping[str, Any]) -> Iterator[tuple[Table, Column]]:
    """The columns of a quantity with these labels, each with its table."""
    for table in record.tables:
        for column in table.columns:
            if column.name == quantity.name and labels.items() <= column.labels.items():
                yield table, column


_NAMED = {
    "accuracy": Q.accuracy, "loss": Q.mean_loss, "confidence": Q.mean_p_gold, "examples": Q.examples,
    "presentations": Q.presentations, "total_forgetting_events": Q.forgetting_events, "learned": Q.learned,
    "never_learned": Q.never_learned, "unforgettable": Q.unforgettable, "mean_el2n": Q.mean_el2n,
    "mean_aum": Q.mean_aum, "mean_variability": Q.mean_variability,
}  # fmt: skip


def epoch_statistics(record: Record) -> dict[str, Any]:
    """The numbers of a record of `ExampleLedger` by plain names; None for what was not measured."""
    by_kind = {table.kind: table for table in record.tables}
    columns = {column.name: column.values[0] for column in by_kind["model"].columns if not column.labels}
    statistics = {"epoch": record.epoch, **{key: columns.get(quantity.name) for key, quantity in _NAMED.items()}}
    groups = by_kind.get("group")
    accuracy = {} if groups is None else dict(zip(groups.scopes, groups.columns[0].values, strict=True))
    return statistics | {"accuracy_by_group": accuracy}
