"""The ledger of a run, in a folder or in memory."""

from __future__ import annotations

from typing import Any

from learnscope.ledger.ledger import Ledger
from learnscope.record import Record
from learnscope.store.backend import Backend, FolderBackend, MemoryBackend


def ledger_of(backend: Backend) -> Ledger | None:
    """The ledger as it was last stored; None if no examples were tracked."""
    if isinstance(backend, FolderBackend):
        return Ledger.load_from(backend.path)
    arrays = backend.examples if isinstance(backend, MemoryBackend) else None
    return None if arrays is None else Ledger.from_arrays(arrays)


def epoch_statistics(record: Record) -> dict[str, Any]:
    """The numbers of a record of `ExampleLedger` by plain names; None for what was not measured."""
    named = {
        "accuracy": "accuracy", "loss": "mean_loss", "confidence": "mean_p_gold", "examples": "examples",
        "presentations": "presentations", "total_forgetting_events": "forgetting_events", "learned": "learned",
        "never_learned": "never_learned", "unforgettable": "unforgettable", "mean_el2n": "mean_el2n",
        "mean_aum": "mean_aum", "mean_variability": "mean_variability",
    }  # fmt: skip
    by_kind = {table.kind: table for table in record.tables}
    columns = {column.name: column.values[0] for column in by_kind["model"].columns if not column.labels}
    statistics = {"epoch": record.epoch, **{key: columns.get(name) for key, name in named.items()}}
    groups = by_kind.get("group")
    accuracy = {} if groups is None else dict(zip(groups.scopes, groups.columns[0].values, strict=True))
    return statistics | {"accuracy_by_group": accuracy}
