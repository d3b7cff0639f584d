"""The table of a large run, or of a compacted one, without a Python object for every number.

The lines go through DuckDB, which keeps every number and text as it is written. Runs with unusual values are left to
`frame_of`, which reads record by record: the result is None, or the same as there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from learnscope.record import HEADER
from learnscope.store.backend import RunError, load
from learnscope.store.duck import connection, lines_sql, longest_line
from learnscope.store.lines import parse_line
from learnscope.store.parts import LINES, Parts, opened

if TYPE_CHECKING:
    import pandas as pd

    from learnscope.store.flatten import Bools, Flat

FAST_FROM = 1 << 22
"""Bytes of lines from which on this is faster, in spite of importing DuckDB."""

RECORDS_AT_ONCE = 1 << 16

_COLUMN = '"name" JSON, "values" JSON[], labels JSON, status JSON'
_TYPES = {
    **dict.fromkeys(HEADER, "JSON"),
    "tables": f'STRUCT(kind JSON, scopes JSON[], "columns" STRUCT({_COLUMN})[])[]',
}


def fast_frame(
    folder: Path,
    starts: Mapping[int, int] | None,
    probe: str | None,
    name: str | None,
    kind: str | None,
    declared: Iterable[str] = (),
) -> tuple[pd.DataFrame, list[str]] | None:
    """The table and the problems of a run folder; None if it has to be read record by record.

    `starts` is the start step of each attempt; None keeps superseded records too. `declared`: see `frame_of`.
    """
    with opened(folder) as parts:
        size = 0 if parts.lines is None else (folder / LINES).stat().st_size - parts.start
        if parts.parquet is None and size < FAST_FROM:
            return None
        try:
            arrow = load("pyarrow", "a fast table")
            errors = (OSError, arrow.ArrowInvalid, *((load("duckdb", "a fast table").Error,) if size else ()))
        except RunError:
            return None
        from learnscope.store.flatten import Flat, Irregular

        try:
            flat = Flat(starts or {}, probe, name, kind)
            for batch in parts.parquet.iter_batches() if parts.parquet else ():
                flat.add(batch)
            problems = list(parts.compacted.problems)
            if size:
                problems += _add_lines(flat, folder, parts)
            return flat.frame(declared), problems
        except (Irregular, RunError, *errors):  # also if the file is being compacted, or fsspec is missing
            return None


def _add_lines(flat: Flat, folder: Path, parts: Parts) -> list[str]:
    from learnscope.store.flatten import Nest

    path = folder / LINES
    with connection("a fast table") as (database, files):
        name = files.add(path, parts.start)
        source = lines_sql([name], _TYPES, longest_line(path, parts.start))
        table = database.sql(f"select * exclude (filename) from {source}").to_arrow_table()
    batches = table.to_batches(max_chunksize=RECORDS_AT_ONCE)
    nests = [Nest(batch) for batch in batches]
    doubtful = np.concatenate([nest.incomplete() for nest in nests] or [np.zeros(0, bool)])
    problems = _problems(parts.lines, doubtful)
    first = 0
    for batch, nest in zip(batches, nests, strict=True):
        flat.add(batch, nest, doubtful[first : first + batch.num_rows], quoted=True)
        first += batch.num_rows
    return problems


def _problems(lines: Any, doubtful: Bools) -> list[str]:
    """What is wrong with the lines of these rows. There are few: a kill leaves one."""
    from learnscope.store.flatten import Irregular

    if not doubtful.any():
        return []
    problems, row = [], 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if row < len(doubtful) and doubtful[row]:
            problem = parse_line(number, line.rstrip(b"\n"))
            if not isinstance(problem, str):
                raise Irregular("a line that Python reads as a record and DuckDB does not")
            problems.append(problem)
        row += 1
    if row < len(doubtful):
        raise Irregular("DuckDB found more lines than there are")
    return problems
