"""The numbers of an epoch of an `ExampleLedger`."""

from __future__ import annotations

from typing import Any

from learnscope.quantities.examples import ExampleLedger as Q
from learnscope.record import Record

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
