"""The tables for SQL: `records`, `events` and `runs`, over the lines and Parquet files of any number of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learnscope.store.backend import FolderBackend
from learnscope.store.duck import LONGEST_LINE, lines_sql, listed, longest_line
from learnscope.store.parquet import NAME as PARQUET
from learnscope.store.parts import LINES, opened
from learnscope.store.reader import attempt_starts, status_of

if TYPE_CHECKING:
    from learnscope.store.sealed import RunFiles

COLUMNS = {
    "records": "run, step, epoch, attempt, source, phase, probe, kind, scope, name, value, status, time, cost, labels",
    "events": "run, step, epoch, attempt, source, phase, probe, time, cost, error, notes",
    "runs": "run, source, status, started, ended, attempts, last_step, records, damaged, model, parameters, manifest",
}
"""The columns. `all_records` and `all_events` include superseded records, marked in `superseded`."""

_COLUMN = {"name": "VARCHAR", "values": ["DOUBLE"], "integers": "BOOLEAN", "labels": "VARCHAR", "status": "VARCHAR"}
_SHAPE: dict[str, Any] = {
    "probe": "VARCHAR", "step": "BIGINT", "epoch": "BIGINT", "phase": "VARCHAR", "source": "VARCHAR",
    "attempt": "BIGINT", "time": "DOUBLE", "cost": "DOUBLE", "error": "VARCHAR", "notes": "VARCHAR",
    "tables": [{"kind": "VARCHAR", "scopes": ["VARCHAR"], "columns": [_COLUMN]}],
}  # fmt: skip
"""A record: the SQL type of each value, in a list for lists of it."""
_OPTIONAL = ("epoch", "error", "notes")


@dataclass(frozen=True)
class Source:
    """A run as the database sees it."""

    run: str
    manifest: dict[str, Any]
    status: str | None
    lines: str | None
    parquet: str | None
    longest: int
    damaged: int
    """Lines that were damaged when the run was compacted."""


def source_of(folder: Path, files: RunFiles) -> Source:
    """Open a run folder and add its files to what the database may read."""
    backend = FolderBackend.existing(folder)
    manifest = backend.manifest()
    with opened(folder) as parts:
        has_lines = parts.lines is not None and (folder / LINES).stat().st_size > parts.start
        return Source(
            run=str(folder),
            manifest=manifest,
            status=status_of(backend, manifest),
            lines=files.add(folder / LINES, parts.start) if has_lines else None,
            parquet=files.add(folder / PARQUET) if parts.parquet else None,
            longest=longest_line(folder / LINES, parts.start) if has_lines else LONGEST_LINE,
            damaged=len(parts.compacted.problems),
        )


def create_views(database: Any, sources: Sequence[Source]) -> None:
    """Make the tables. Records become rows while they are read, so that no run is held in memory as a whole."""
    database.execute("create schema internal")
    _create_files(database, sources)
    database.execute(
        "create macro internal.label_text(label) as case json_type(label) when 'VARCHAR' then label ->> '$' "
        "when 'DOUBLE' then label::DOUBLE::VARCHAR when 'NULL' then null else label::VARCHAR end"
    )
    complete = " and ".join(f"{name} is not null" for name in _SHAPE if name not in _OPTIONAL)
    superseded = "len([c for c in cuts if c.attempt > r.attempt and r.step > c.start]) > 0"
    database.execute(
        f"create view internal.records as select run, r.*, {complete} as complete, len(cuts) > 1 and {superseded} "
        f"as superseded from ({_read_sql(sources)}) r join internal.files using (file)"
    )
    header = "run, superseded, step, epoch, attempt, source, phase, probe, time, cost"
    database.execute(
        f"create view all_records as "
        f"with tables_ as (select {header}, unnest(tables) as t from internal.records where complete), "
        f"columns_ as (select {header}, t.kind as kind, t.scopes as scopes, unnest(t.columns) as c from tables_), "
        f"texts_ as (select *, {_LABELS} as labels, {_REASONS} as reasons from columns_) "
        "select run, step, epoch, attempt, source, phase, probe, kind, unnest(scopes) as scope, c.name as name, "
        "unnest(c.values) as value, unnest(reasons) as status, time, cost, labels, superseded from texts_"
    )
    events = COLUMNS["events"].replace("notes", "notes::JSON as notes")
    database.execute(f"create view all_events as select {events}, superseded from internal.records where complete")
    for name in ("records", "events"):
        database.execute(f"create view {name} as select {COLUMNS[name]} from all_{name} where not superseded")
    _create_runs(database, sources)


_LABELS = (
    "case when c.labels is null then map([]::VARCHAR[], []::VARCHAR[]) else map_from_entries("
    "[{'key': e.key, 'value': internal.label_text(e.value)} "
    "for e in map_entries(c.labels::JSON::MAP(VARCHAR, JSON))]) end"
)
_REASONS = (
    "case when c.status is null then null else "
    "[(c.status::JSON::MAP(VARCHAR, VARCHAR))[i::VARCHAR] for i in range(len(scopes))] end"
)


def _read_sql(sources: Sequence[Source]) -> str:
    """The records of all files, one row each; a damaged line is a row of nulls."""
    types = {name: _sql_type(shape) for name, shape in _SHAPE.items()}
    names = ", ".join(types)
    nulls = ", ".join(f"null::{kind} as {name}" for name, kind in types.items())
    selects = [f"select ''::VARCHAR as file, {nulls} where false"]  # for runs without any records
    if lines := [source.lines for source in sources if source.lines]:
        longest = max(source.longest for source in sources)
        selects.append(f"select filename as file, {names} from {lines_sql(lines, types, longest)}")
    if compacted := [source.parquet for source in sources if source.parquet]:
        table = f"read_parquet({listed(compacted)}, filename=true)"
        selects.append(f"select filename as file, {names} from {table} where json is null")
        texts = f"select filename, from_json(json, '{json.dumps(_SHAPE)}') as body from {table} where json is not null"
        selects.append(f"select filename as file, {', '.join(f'body.{name}' for name in types)} from ({texts})")
    return " union all ".join(selects)


def _sql_type(shape: Any) -> str:
    if isinstance(shape, list):
        return f"{_sql_type(shape[0])}[]"
    if isinstance(shape, dict):
        return "STRUCT(" + ", ".join(f'"{name}" {_sql_type(kind)}' for name, kind in shape.items()) + ")"
    return str(shape)


def _create_files(database: Any, sources: Sequence[Source]) -> None:
    """The run that each file belongs to, and the start step of each of the run's attempts."""
    database.execute(
        "create table internal.files (file VARCHAR, run VARCHAR, cuts STRUCT(attempt BIGINT, start BIGINT)[])"
    )
    for source in sources:
        cuts = [{"attempt": a, "start": s} for a, s in attempt_starts(source.manifest).items()]
        for file in filter(None, (source.lines, source.parquet)):
            database.execute("insert into internal.files values (?, ?, ?)", [file, source.run, cuts])


def _create_runs(database: Any, sources: Sequence[Source]) -> None:
    """One row per run: what run.json holds, and how many of its records can be read."""
    counted = database.execute(
        "select run, count(*), count(*) filter (complete), max(step) filter (complete and not superseded) "
        "from internal.records group by run"
    ).fetchall()
    counts = {run: numbers for run, *numbers in counted}
    database.execute(
        "create table runs (run VARCHAR, source VARCHAR, status VARCHAR, started DOUBLE, ended DOUBLE, "
        "attempts BIGINT, last_step BIGINT, records BIGINT, damaged BIGINT, model VARCHAR, parameters BIGINT, "
        "manifest JSON)"
    )
    for source in sources:
        manifest = source.manifest
        attempts = manifest.get("attempts") or [{}]
        model = manifest.get("model") or {}
        lines, records, last_step = counts.get(source.run, (0, 0, None))
        row = [
            source.run, manifest.get("source"), source.status, attempts[0].get("started"),
            attempts[-1].get("ended"), len(manifest.get("attempts") or []), last_step, records,
            source.damaged + lines - records, model.get("class"), model.get("parameters"), json.dumps(manifest),
        ]  # fmt: skip
        database.execute(f"insert into runs values ({', '.join('?' * len(row))})", row)
