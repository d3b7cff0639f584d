"""The plain lines of a telemetry file read by pyarrow, several times as fast as line by line.

Lines that pyarrow refuses, or would read differently from Python's own reader, are left to the latter.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from learnscope.store.telemetry.chunks import (
    ARRAYS,
    BATCH,
    EPOCH,
    STATUS,
    STEP,
    TIME,
    Chunk,
    Path,
    Values,
    array,
    given_reasons,
    objects,
    times,
)

pa: Any = import_module("pyarrow")  # ships no types
arrow_json: Any = import_module("pyarrow.json")


class _NotPlain(Exception):
    """A value that only Python's own reader gives exactly."""


def by_arrow(data: bytes, logits: bool) -> Chunk | None:
    """The lines as `by_json` gives them, or None if they need `by_json`."""
    lines = _objects_on_lines(data)
    if not lines:
        return None
    # one block and one thread: otherwise the order of the columns depends on which block was ready first
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = arrow_json.ParseOptions(explicit_schema=pa.schema([(TIME[0], pa.string())]))
    try:
        if not data.isascii():
            data.decode()  # pyarrow does not check
        table = arrow_json.read_json(pa.BufferReader(data), reading, parsing)
        if len(table) != lines:
            return None
        chunk = Chunk(lines)
        for name, column in zip(table.column_names, table.columns, strict=True):
            _walk(chunk, (name,), column.combine_chunks(), logits)
    except (pa.ArrowException, UnicodeDecodeError, _NotPlain):
        return None
    whole = all(path in chunk.columns for path in (BATCH, EPOCH))
    return chunk if whole else None


def _objects_on_lines(data: bytes) -> int:
    """The number of lines, if each begins and ends like an object; else 0.

    pyarrow accepts one object over two lines, and two on one line. With `}` before and `{` after every line end, no
    object can span it, so that as many objects as lines means one on each.
    """
    ends = data.count(b"\n") - data.endswith(b"\n")
    framed = data.startswith(b"{") and data.endswith((b"}", b"}\n")) and data.count(b"}\n{") == ends
    return ends + 1 if framed else 0


def _walk(chunk: Chunk, path: Path, column: Any, logits: bool) -> None:
    is_object = pa.types.is_struct(column.type) and path != STATUS
    chunk.nodes[path] = is_object
    if is_object:
        for inner, values in zip(column.type, column.flatten(), strict=True):
            _walk(chunk, (*path, inner.name), values, logits)
    elif logits or path not in ARRAYS:
        chunk.columns[path] = _values(path, column)


def _values(path: Path, column: Any) -> Values:
    if path in (BATCH, EPOCH, STEP) and not pa.types.is_int64(column.type):
        if path == STEP and pa.types.is_null(column.type):
            return np.full(len(column), np.nan)
        raise _NotPlain
    if path in (BATCH, EPOCH):
        if column.null_count:
            raise _NotPlain
        return np.asarray(column)
    if path == TIME:
        return _timestamps(column)
    if path == STATUS:
        return _statuses(column)
    if path in ARRAYS:
        return _arrays(column)
    return _numbers(column)


def _numbers(column: Any) -> Values:
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
        if np.isinf(values).any():  # Python accepts only one of the ways to write it
            raise _NotPlain
        return values
    if pa.types.is_string(column.type) or pa.types.is_boolean(column.type):
        return objects(column.to_pylist())
    raise _NotPlain


def _timestamps(column: Any) -> Values:
    try:
        return np.asarray(column.cast(pa.timestamp("us")))
    except pa.ArrowException:  # such as times with an offset
        return times(column.to_pylist())


def _statuses(column: Any) -> Values:
    """Few rows have a status; only these become Python objects."""
    statuses = np.full(len(column), None, dtype=object)
    if pa.types.is_null(column.type):
        return statuses
    if not pa.types.is_struct(column.type) or not all(pa.types.is_string(child.type) for child in column.type):
        raise _NotPlain
    for row in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)):
        statuses[row] = given_reasons(column[int(row)].as_py())
    return statuses


def _arrays(column: Any) -> Values:
    inner = column.type
    while pa.types.is_list(inner):
        inner = inner.value_type
    if not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_null(inner)):
        raise _NotPlain
    return objects([array(value) for value in column.to_pylist()])
