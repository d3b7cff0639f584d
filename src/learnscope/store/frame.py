"""Records as a tidy table: one row a number, one column a label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from learnscope.record import Record

if TYPE_CHECKING:
    import pandas as pd

FIXED_COLUMNS = (
    "step", "epoch", "attempt", "source", "phase", "probe", "kind", "scope", "name", "value", "status",
    "time", "cost",
)  # fmt: skip


def frame_of(records: Iterable[Record], name: str | None = None, kind: str | None = None) -> pd.DataFrame:
    """The table of any records, record by record. `fast_frame` gives the same of large run folders."""
    columns: dict[str, list[Any]] = {key: [] for key in FIXED_COLUMNS}
    labels: dict[str, list[tuple[int, int, Any]]] = {}
    for record in records:
        for table in record.tables:
            if kind is not None and table.kind != kind:
                continue
            n = len(table.scopes)
            for column in table.columns:
                if name is not None and column.name != name:
                    continue
                start = len(columns["step"])
                for label, value in column.labels.items():
                    labels.setdefault(label, []).append((start, n, value))
                _extend(columns, record, table.kind, table.scopes, column.name, column.values, n)
                columns["status"].extend([None] * n)
                for position, reason in column.status.items():
                    columns["status"][start + position] = reason
    total = len(columns["step"])
    for label, spans in labels.items():
        cells: list[Any] = [None] * total
        for start, n, value in spans:
            cells[start : start + n] = [value] * n
        columns[label_column(label)] = cells
    return finished(columns)


def label_column(label: str) -> str:
    """The column of a label, which may be called as one of ours."""
    return label if label not in FIXED_COLUMNS else f"label_{label}"


def finished(columns: dict[str, Any]) -> pd.DataFrame:
    """The table of these columns, with the types that do not depend on what was recorded."""
    import pandas as pd

    frame = pd.DataFrame(columns)
    frame["value"] = frame["value"].astype("float64")
    frame["status"] = frame["status"].astype(object)
    return frame


def _extend(
    columns: dict[str, list[Any]], record: Record, kind: str, scopes: Any, name: str, values: Any, n: int
) -> None:
    """Append one column's numbers with everything that is the same for all of them."""
    same = (
        ("step", record.step), ("epoch", record.epoch), ("attempt", record.attempt), ("source", record.source),
        ("phase", record.phase), ("probe", record.probe), ("kind", kind), ("name", name),
        ("time", record.time), ("cost", record.cost),
    )  # fmt: skip
    for key, value in same:
        columns[key].extend([value] * n)
    columns["scope"].extend(scopes)
    columns["value"].extend(values)
