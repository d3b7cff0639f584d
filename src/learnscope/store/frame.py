"""Records as a tidy table: one row per number, one column per label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from learnscope.record import HEADER, Record

if TYPE_CHECKING:
    import pandas as pd

FIXED_COLUMNS = (
    "step", "epoch", "attempt", "source", "phase", "probe", "kind", "scope", "name", "value", "status",
    "time", "cost",
)  # fmt: skip


def frame_of(
    records: Iterable[Record], name: str | None = None, kind: str | None = None, declared: Iterable[str] = ()
) -> pd.DataFrame:
    """The table of any records, built record by record. `frame_from` gives the same from columns.

    `declared` labels have a column whether or not a record has them.
    """
    columns: dict[str, list[Any]] = {key: [] for key in FIXED_COLUMNS}
    labels: dict[str, list[tuple[int, int, Any]]] = {label: [] for label in declared}
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
                for key in HEADER:
                    columns[key].extend([getattr(record, key)] * n)
                columns["kind"].extend([table.kind] * n)
                columns["name"].extend([column.name] * n)
                columns["scope"].extend(table.scopes)
                columns["value"].extend(column.values)
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


def inferred(values: Sequence[Any]) -> Any:
    """An array with the dtype that pandas infers for these values; it does not depend on how often each occurs."""
    import pandas as pd

    return pd.Series(list(values), dtype=None if len(values) else "float64").array  # of none: as in a table


def label_column(label: str) -> str:
    """The column of a label, renamed if it has the name of a fixed column."""
    return label if label not in FIXED_COLUMNS else f"label_{label}"


def finished(columns: dict[str, Any]) -> pd.DataFrame:
    """The table of these columns, with dtypes that do not depend on what was recorded."""
    import pandas as pd

    status = columns["status"]
    of_any_type = (inferred(status) if isinstance(status, list) else status).astype(object)
    return pd.DataFrame({**columns, "value": np.asarray(columns["value"], np.float64), "status": of_any_type})


@lru_cache(64)
def empty_frame(labels: tuple[str, ...]) -> pd.DataFrame:
    """A table without rows, to be copied: most questions of a run are about what it did not record."""
    return finished({**{key: [] for key in FIXED_COLUMNS}, **{label_column(label): [] for label in labels}})
