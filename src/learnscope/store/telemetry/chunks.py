"""Pieces of a telemetry file as columns, read with Python's own JSON reader.

A column is known by its path: ("gradient_norm", "overall"). Numbers are float64 with NaN for null; anything else is an
object column with None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Path = tuple[str, ...]
Values = NDArray[Any]

BATCH, EPOCH, STEP, TIME, STATUS = (("batch_idx",), ("epoch",), ("global_step",), ("timestamp",), ("status",))
ARRAYS = frozenset(("holdout_logits", name) for name in ("logits", "labels", "predictions"))
"""Lists with an entry for every held-out example: most of a file, and read only on request."""


@dataclass
class Chunk:
    """Some consecutive lines of the file."""

    rows: int
    columns: dict[Path, Values] = field(default_factory=dict)
    nodes: dict[Path, bool] = field(default_factory=dict)
    """Every path, in the order of appearance, and whether it was an object."""
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Lines that were left out, with the reason."""


def by_json(data: bytes, first_line: int, logits: bool) -> Chunk:
    """Any lines, with Python's own reader; torn or damaged ones are left out and listed as problems."""
    collections, problems = [], []
    for number, line in enumerate(data.split(b"\n"), start=first_line):
        if not line.strip():
            continue
        try:
            collections.append(_collection(line))
        except (ValueError, RecursionError) as error:
            problems.append((number, str(error)))
    chunk = Chunk(len(collections), problems=problems)
    cells: dict[Path, list[Any]] = {}
    for row, body in enumerate(collections):
        for name, value in body.items():
            _place(chunk, cells, row, (name,), value, logits)
    for path, values in cells.items():
        values.extend([None] * (len(collections) - len(values)))
        chunk.columns[path] = _column(path, values)
    return chunk


def _collection(line: bytes) -> dict[str, Any]:
    body = json.loads(line.decode())
    if not isinstance(body, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004  (damage like any other)
    for path, needed in ((BATCH, True), (EPOCH, True), (STEP, False)):
        value = body.get(path[0])
        if not (_is_whole(value) or (value is None and not needed)):
            raise ValueError(f"its {path[0]} is {value!r} instead of a whole number")
    return body


def _is_whole(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _place(chunk: Chunk, cells: dict[Path, list[Any]], row: int, path: Path, value: Any, logits: bool) -> None:
    """Put a value into its column; the members of an object each into a column of their own."""
    is_object = isinstance(value, dict) and path != STATUS
    chunk.nodes[path] = is_object or chunk.nodes.get(path, False)
    if is_object:
        for name, inner in value.items():
            _place(chunk, cells, row, (*path, name), inner, logits)
    elif logits or path not in ARRAYS:
        column = cells.setdefault(path, [])
        column.extend([None] * (row - len(column)))
        column.append(value)


def _column(path: Path, values: list[Any]) -> Values:
    if path in (BATCH, EPOCH):
        return np.array(values, dtype=np.int64)
    if path == TIME:
        return times(values)
    if path == STATUS:
        return objects([given_reasons(value) for value in values])
    if path in ARRAYS:
        return objects([array(value) for value in values])
    kinds = {type(value) for value in values}
    if kinds <= {int, float, type(None)}:
        return np.array([_number(value) for value in values], dtype=np.float64)
    return objects([_number(value) if type(value) in (int, float) else value for value in values])


def _number(value: float | None) -> float:
    if value is None:
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number beyond float64
        return math.inf if value > 0 else -math.inf


def given_reasons(value: Any) -> Any:
    """The reasons that are not null; None if there are none."""
    if not isinstance(value, dict):
        return value
    return {key: reason for key, reason in value.items() if reason is not None} or None


def array(value: Any) -> Any:
    """A list of numbers as an array, null as NaN; a list that is not rectangular stays as it is."""
    if not isinstance(value, list):
        return value
    try:
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "iubfO":
            return value
        return numbers.astype(np.int64 if numbers.dtype.kind in "iub" else np.float64)
    except (ValueError, TypeError):
        return value


def times(values: Sequence[Any]) -> Values:
    """ISO times; those with an offset are converted to UTC, others stay as they are. Anything else is NaT."""
    import pandas as pd

    texts = pd.Series([value if isinstance(value, str) else None for value in values], dtype=object)
    parsed = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
    return parsed.dt.tz_localize(None).to_numpy("datetime64[us]")


def objects(values: Sequence[Any]) -> Values:
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = None if isinstance(value, float) and math.isnan(value) else value
    return column
