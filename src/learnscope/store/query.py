"""SQL over the records of any number of runs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from learnscope.store.backend import RunError, load
from learnscope.store.duck import connection, listed
from learnscope.store.folders import Runs, find_runs
from learnscope.store.views import COLUMNS, create_views, source_of

if TYPE_CHECKING:
    import pandas as pd


def query(sql: str, runs: Runs = "runs") -> pd.DataFrame:
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
    """
    purpose = "SQL over runs"
    folders = find_runs(runs)
    with connection(purpose) as (database, files):
        errors = load("duckdb", purpose).Error
        try:
            create_views(database, [source_of(folder, files) for folder in folders])
        except errors as error:
            raise RunError(f"the runs could not be read: {_one_line(error)}") from error
        for run, damaged in database.execute("select run, damaged from runs where damaged > 0").fetchall():
            lines = "1 line that is" if damaged == 1 else f"{damaged:,} lines that are"
            warnings.warn(f"{run}: left out {lines} torn or damaged", stacklevel=2)
        # from here on the database can open only these files, which cannot be written; this cannot be undone
        database.execute(f"set allowed_paths = {listed(files.names)}")
        database.execute("set enable_external_access = false")
        database.execute("set lock_configuration = true")
        try:
            _check_reads(database, sql)
            return database.execute(sql).df()  # type: ignore[no-any-return]
        except errors as error:
            tables = "; ".join(f"{name}({columns})" for name, columns in COLUMNS.items())
            raise RunError(f"{_one_line(error)} There are: {tables}.") from error


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
