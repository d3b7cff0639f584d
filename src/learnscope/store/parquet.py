"""Records as Parquet: one row per record, its tables nested, nothing lost.

Labels, statuses and notes are JSON text, which keeps the types of their values. A record that the columns cannot hold
exactly, such as one with an integer beyond 2⁵³, is kept as JSON text in the column `json`; its other columns are empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

from learnscope.record import Column, Record, Table
from learnscope.store.backend import load

NAME = "records.parquet"
RECORDS_A_GROUP, NUMBERS_A_GROUP = 50_000, 1_000_000  # a row group is held in memory until it is written
TEXTS = ("probe", "phase", "source", "arrays", "error", "notes", "json")
INTEGERS = ("step", "epoch", "attempt")
FLOATS = ("time", "cost")
_HEADER = ("probe", "phase", "source", "arrays", "error", *INTEGERS, *FLOATS)

_PURPOSE = "a compacted run (records.parquet)"


def schema() -> Any:
    pa = load("pyarrow", _PURPOSE)
    column = pa.struct(
        {
            "name": pa.string(), "values": pa.list_(pa.float64()), "integers": pa.bool_(),
            "labels": pa.string(), "status": pa.string(),
        }
    )  # fmt: skip
    table = pa.struct({"kind": pa.string(), "scopes": pa.list_(pa.string()), "columns": pa.list_(column)})
    return pa.schema(
        [(name, pa.string()) for name in TEXTS]
        + [(name, pa.int64()) for name in INTEGERS]
        + [(name, pa.float64()) for name in FLOATS]
        + [("tables", pa.list_(table))]
    )


def batch(records: Iterable[tuple[Record, bytes]]) -> Any:
    """Records as rows; each comes with the JSON line that it was read from."""
    pa = load("pyarrow", _PURPOSE)
    rows = [(record, None) if _fits(record) else (None, json.dumps(json.loads(line))) for record, line in records]
    tables = [() if record is None else record.tables for record, _ in rows]
    header: dict[str, list[Any]] = {name: [getattr(record, name, None) for record, _ in rows] for name in _HEADER}
    header["notes"] = [None if record is None else _text(record.notes) for record, _ in rows]
    header["json"] = [text for _, text in rows]
    shape = schema()
    arrays = [pa.array(header[field.name], field.type) for field in shape if field.name != "tables"]
    return pa.RecordBatch.from_arrays([*arrays, _lists(tables, _table_structs)], schema=shape)


def _table_structs(tables: list[Table]) -> Any:
    pa = load("pyarrow", _PURPOSE)
    columns = _lists([table.columns for table in tables], _column_structs)
    scopes = _lists([table.scopes for table in tables], lambda texts: pa.array(texts, pa.string()))
    kinds = pa.array([table.kind for table in tables], pa.string())
    return pa.StructArray.from_arrays([kinds, scopes, columns], names=["kind", "scopes", "columns"])


def _column_structs(columns: list[Column]) -> Any:
    pa = load("pyarrow", _PURPOSE)
    fields = {
        "name": pa.array([column.name for column in columns], pa.string()),
        "values": _lists([column.values for column in columns], lambda numbers: pa.array(numbers, pa.float64())),
        "integers": pa.array([float not in map(type, column.values) for column in columns], pa.bool_()),
        "labels": pa.array([_text(column.labels) for column in columns], pa.string()),
        "status": pa.array([_text(column.status) for column in columns], pa.string()),
    }
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def _lists(parts: Sequence[Sequence[Any]], array: Callable[[list[Any]], Any]) -> Any:
    """Lists within a column: all their items as one array, and where each list ends."""
    pa = load("pyarrow", _PURPOSE)
    ends = accumulate(map(len, parts), initial=0)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), array(list(chain.from_iterable(parts))))


def records(file: Any) -> Iterator[Record]:
    for batch in file.iter_batches(batch_size=4096):
        yield from records_of(batch)


def records_of(batch: Any) -> Iterator[Record]:
    """The records of some rows."""
    header = {name: batch.column(name).to_pylist() for name in (*TEXTS, *INTEGERS, *FLOATS)}
    ends = batch.column("tables").offsets.to_pylist()
    tables = _tables(batch.column("tables").values)
    for i, text in enumerate(header.pop("json")):
        if text is not None:
            yield Record.from_json(text)
            continue
        fields = {name: values[i] for name, values in header.items()}
        fields["notes"] = _object(fields["notes"])
        yield Record(tables=tables[ends[i] : ends[i + 1]], **fields)


def _tables(array: Any) -> list[Table]:
    kinds = array.field("kind").to_pylist()
    scopes, scope_ends = array.field("scopes").values.to_pylist(), array.field("scopes").offsets.to_pylist()
    columns, ends = _columns(array.field("columns").values), array.field("columns").offsets.to_pylist()
    return [
        Table(kind, scopes[scope_ends[i] : scope_ends[i + 1]], columns[ends[i] : ends[i + 1]])
        for i, kind in enumerate(kinds)
    ]


def _columns(array: Any) -> list[Column]:
    values, ends = array.field("values").values.to_pylist(), array.field("values").offsets.to_pylist()
    columns = []
    fields = (array.field(name).to_pylist() for name in ("name", "integers", "labels", "status"))
    for i, (name, integers, labels, status) in enumerate(zip(*fields, strict=True)):
        column_values = values[ends[i] : ends[i + 1]]
        if integers:
            column_values = [None if v is None else int(v) for v in column_values]
        reasons = {int(place): reason for place, reason in _flat_object(status).items()}
        columns.append(Column(name, column_values, _flat_object(labels), reasons))
    return columns


def _fits(record: Record) -> bool:
    """Whether the columns can hold the record, whose types were checked on reading, so that it comes back equal."""
    return (
        _is_float64(record.time)
        and _is_float64(record.cost)
        and _is_same_when_read(record.notes)
        and all(
            _is_same_when_read(column.labels) and all(map(_is_float64, column.values))
            for table in record.tables
            for column in table.columns
        )
    )


def _is_float64(number: float | None) -> bool:
    """No integer that a float64 would round, and no NaN, which does not equal itself."""
    try:
        return number is None or float(number) == number
    except OverflowError:
        return False


def _is_same_when_read(body: Mapping[str, Any]) -> bool:
    """A JSON object that survives the round trip; one with a NaN in it is not equal to itself."""
    return not body or json.loads(json.dumps(body)) == body


def _text(body: Mapping[Any, Any]) -> str | None:
    return json.dumps(body) if body else None


def _object(text: str | None) -> Any:
    return {} if text is None else json.loads(text)


@lru_cache(maxsize=4096)  # there are few different labels and reasons, and many columns that have them
def _items(text: str) -> tuple[tuple[str, Any], ...]:
    return tuple(json.loads(text).items())


def _flat_object(text: str | None) -> dict[str, Any]:
    return {} if text is None else dict(_items(text))
