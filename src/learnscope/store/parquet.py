"""Records as Parquet: one row per record, its tables nested, nothing lost.

Labels, statuses and notes are JSON text, which keeps the types of their values. A record that the columns cannot hold
exactly, such as one with an integer beyond 2⁵³, is kept as JSON text in the column `json`; its other columns are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from learnscope.record import Column, Record, Table
from learnscope.store.backend import load

NAME = "records.parquet"
ROWS_A_BATCH, NUMBERS_A_BATCH = 50_000, 1_000_000  # a batch is held in memory while it is written
TEXTS = ("probe", "phase", "source", "arrays", "error", "notes", "json")
INTEGERS = ("step", "epoch", "attempt")
FLOATS = ("time", "cost")

_PURPOSE = "a compacted run (records.parquet)"
_INT64 = 2**63


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
    return pa.RecordBatch.from_pylist([_row(record, line) for record, line in records], schema=schema())


def _row(record: Record, line: bytes) -> dict[str, Any]:
    if not _fits(record, line):
        return {"json": json.dumps(json.loads(line)), "tables": []}
    header = {name: getattr(record, name) for name in ("probe", "phase", "source", "arrays", "error")}
    header |= {name: getattr(record, name) for name in (*INTEGERS, *FLOATS)}
    tables = [{"kind": t.kind, "scopes": t.scopes, "columns": [_column(c) for c in t.columns]} for t in record.tables]
    return {**header, "notes": _text(record.notes), "tables": tables}


def _column(column: Column) -> dict[str, Any]:
    integers = all(type(v) is not float for v in column.values)
    texts = {"labels": _text(column.labels), "status": _text(column.status)}
    return {"name": column.name, "values": column.values, "integers": integers, **texts}


def records(file: Any) -> Iterator[Record]:
    for batch in file.iter_batches(batch_size=4096):
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
        columns.append(Column(name, column_values, _object(labels), {int(k): v for k, v in _object(status).items()}))
    return columns


def _fits(record: Record, line: bytes) -> bool:
    """Whether the columns can hold the record so that it is read back equal."""
    try:
        if b"\\ud" in line.lower():  # half of a surrogate pair is not valid Unicode
            json.dumps(json.loads(line), ensure_ascii=False).encode()
        return (
            all(isinstance(text, str) for text in (record.probe, record.phase, record.source))
            and all(isinstance(text, str | None) for text in (record.arrays, record.error))
            and all(_is_int64(number) for number in (record.step, record.attempt))
            and (record.epoch is None or _is_int64(record.epoch))
            and all(number is not None and _is_float64(number) for number in (record.time, record.cost))
            and _is_object(record.notes)
            and isinstance(record.tables, list)
            and all(_table_fits(table) for table in record.tables)
        )
    except (UnicodeEncodeError, OverflowError, TypeError):
        return False


def _table_fits(table: Table) -> bool:
    return (
        isinstance(table.scopes, list)
        and all(isinstance(text, str) for text in (table.kind, *table.scopes, *(c.name for c in table.columns)))
        and all(isinstance(c.values, list) and _is_object(c.labels) for c in table.columns)
        and all(_is_float64(value) for c in table.columns for value in c.values)
    )


def _is_int64(number: Any) -> bool:
    return type(number) is int and -_INT64 <= number < _INT64


def _is_float64(number: Any) -> bool:
    return number is None or (type(number) in (int, float) and float(number) == number)


def _is_object(body: Any) -> bool:
    """A JSON object that survives the round trip; one with a NaN in it is not equal to itself."""
    return isinstance(body, dict) and (not body or json.loads(json.dumps(body)) == body)


def _text(body: Mapping[Any, Any]) -> str | None:
    return json.dumps(body) if body else None


def _object(text: str | None) -> Any:
    return {} if text is None else json.loads(text)
