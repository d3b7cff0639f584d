"""SQL over the records of any number of runs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from learnscope.store.backend import RunError, load
from learnscope.store.duck import connection, listed
from learnscope.store.folders import Runs, find_runs
from learnscope.store.views import COLUMNS, create_views, source_of

if TYPE_CHECKING:
    import pandas as pd


VECTORS = 50
"""How much of a result is fetched at a time, in DuckDB's vectors of 2,048 rows."""


def query(sql: str, runs: Runs = "runs", *, seconds: float | None = 60.0, memory_mb: int = 2048) -> pd.DataFrame:
    """The result of one SELECT over the records of `runs`: run folders, folders that contain some, or patterns.

    - `records` has one row per number: `run, step, epoch, attempt, source, phase, probe, kind, scope, name, value,
      status, time, cost, labels`; a label is `labels['threshold']`, a text. Superseded records are left out;
      `all_records` includes them and marks them in `superseded`.
    - `events` has one row per record: `run, step, epoch, attempt, source, phase, probe, time, cost, error, notes`.
      `all_events` includes superseded ones.
    - `runs` has one row per run: `run, source, status, started, ended, attempts, last_step, records, damaged, model,
      parameters, manifest`.

    Records, in JSON lines or Parquet, are read during the query and not held in memory. Torn or damaged lines are left
    out with a warning. The SQL can read nothing else, and cannot write at all.

    A query that takes longer than `seconds` (None for no limit), or more than `memory_mb` while it runs or for its
    result, is stopped with an error.
    """
    purpose = "SQL over runs"
    folders = find_runs(runs)
    with connection(purpose, memory_mb) as (database, files), _limited(database, seconds, memory_mb):
        errors = load("duckdb", purpose).Error
        try:
            create_views(database, [source_of(folder, files) for folder in folders])
            _warn_of_damage(database)
            # from here on the database can open only these files, which cannot be written; this cannot be undone
            database.execute(f"set allowed_paths = {listed(files.names)}")
            database.execute("set enable_external_access = false")
            database.execute("set lock_configuration = true")
        except errors as error:
            raise RunError(f"the runs could not be read: {_one_line(error)}") from error
        try:
            _check_reads(database, sql)
            return _fetched(database.execute(sql), memory_mb)
        except errors as error:
            tables = "; ".join(f"{name}({columns})" for name, columns in COLUMNS.items())
            raise RunError(f"{_one_line(error)} There are: {tables}.") from error


@contextmanager
def _limited(database: Any, seconds: float | None, memory_mb: int) -> Iterator[None]:
    """Interrupt what the database is doing when the time is up, and say which limit was reached."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds={seconds}: a positive number, or None for no limit")
    duckdb = load("duckdb", "SQL over runs")
    timer = threading.Timer(threading.TIMEOUT_MAX if seconds is None else seconds, database.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (RunError, duckdb.Error) as error:
        cause = error if isinstance(error, duckdb.Error) else error.__cause__
        if isinstance(cause, duckdb.InterruptException) and not timer.is_alive():
            raise RunError(f"the query took more than {seconds:g} seconds: narrow it, or raise seconds") from error
        if isinstance(cause, duckdb.OutOfMemoryException):
            raise RunError(f"the query needs more than {memory_mb} MB: narrow it, or raise memory_mb") from error
        raise
    finally:
        timer.cancel()


def _fetched(result: Any, memory_mb: int) -> pd.DataFrame:
    """The rows of a result, piece by piece, so that one that is too large is noticed before it fills the memory."""
    import pandas as pd

    pieces: list[pd.DataFrame] = [result.fetch_df_chunk(VECTORS)]
    size = int(pieces[0].memory_usage(deep=True).sum())
    while len(pieces[-1]):
        pieces.append(result.fetch_df_chunk(VECTORS))
        size += int(pieces[-1].memory_usage(deep=True).sum())
        if size > memory_mb << 20:
            raise RunError(f"the result needs more than {memory_mb} MB: add a limit to the SQL, or raise memory_mb")
    return pd.concat(pieces[:-1], ignore_index=True) if len(pieces) > 1 else pieces[0]


def _warn_of_damage(database: Any) -> None:
    for run, damaged in database.execute("select run, damaged from runs where damaged > 0").fetchall():
        lines = "1 line that is" if damaged == 1 else f"{damaged:,} lines that are"
        warnings.warn(f"{run}: left out {lines} torn or damaged", stacklevel=3)


def _check_reads(database: Any, sql: str) -> None:
    """Refuse anything but a SELECT with a clear message; safety does not depend on this check."""
    statements = database.extract_statements(sql)
    if len(statements) != 1 or statements[0].type.name != "SELECT":
        kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
        raise RunError(f"a query is one SELECT statement; this is {kinds}.")


def _one_line(error: Exception) -> str:
    """DuckDB's message without the marked-up SQL; of an error in Python only the last line."""
    text = str(error).strip()
    if text.startswith("Traceback"):
        return text.splitlines()[-1]
    return " ".join(text.split("\n\nLINE ")[0].split())
