"""DuckDB over the lines of runs: a connection, and the SQL that reads lines."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from learnscope.store.backend import load

if TYPE_CHECKING:
    from learnscope.store.sealed import RunFiles

LONGEST_LINE = 1 << 24
"""DuckDB's own limit for a line. Longer lines can be read if the length is known in advance, with larger buffers."""


@contextmanager
def connection(purpose: str) -> Iterator[tuple[Any, RunFiles]]:
    """A database in memory, and the files it may read. What does not fit into memory goes to a temporary folder."""
    duckdb = load("duckdb", purpose)
    load("pyarrow", purpose)
    load("fsspec", purpose)
    from learnscope.store.sealed import RunFiles

    files = RunFiles()
    with TemporaryDirectory(prefix="learnscope-") as spill:
        config = {"temp_directory": spill, "enable_external_file_cache": False, "python_enable_replacements": False}
        database = duckdb.connect(":memory:", config=config)
        try:
            database.execute("set enable_progress_bar = false")
            database.register_filesystem(files)
            yield database, files
        finally:
            if database.filesystem_is_registered(files.protocol):
                database.unregister_filesystem(files.protocol)
            database.close()


def lines_sql(names: Sequence[str], types: Mapping[str, str], longest: int = LONGEST_LINE) -> str:
    """A table of JSON lines in their order; a line that cannot be read is a row of nulls. Blank lines are left out."""
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
    return (
        f"read_json({listed(names)}, format='newline_delimited', columns={{{columns}}}, auto_detect=false, "
        f"ignore_errors=true, filename=true, maximum_object_size={longest})"
    )


def listed(names: Sequence[str]) -> str:
    """An SQL list of the names that `RunFiles` gives, which need no quoting."""
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


def longest_line(path: Path, start: int = 0, at_least: int = LONGEST_LINE) -> int:
    """A power of two that no line exceeds, found without reading every line."""
    size = path.stat().st_size
    if size - start <= at_least:
        return at_least
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        while size - start > at_least:
            end = data.rfind(b"\n", start, start + at_least)
            if end < 0:
                at_least *= 2
            else:
                start = end + 1
    return at_least
