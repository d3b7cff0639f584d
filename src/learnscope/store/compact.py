"""A finished run's lines as Parquet: smaller, faster to read, and with every record."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from learnscope.record import Record
from learnscope.store import parquet
from learnscope.store.backend import FolderBackend, RunError, load
from learnscope.store.columnar.blocks import Segment
from learnscope.store.columnar.blocks_parquet import difference, groups, sampled_difference, table
from learnscope.store.columnar.index import remove_index
from learnscope.store.files import write_atomically
from learnscope.store.parts import LINES, Compacted, Parts, opened

DAMAGED = "records.damaged.jsonl"
_FILES = (LINES, parquet.NAME, DAMAGED)

Progress = Callable[[int, int], None]
"""Called with the amount done and the total."""


@dataclass(frozen=True)
class CompactInfo:
    """The result of compacting a run."""

    records: int
    rows: int
    """The numbers in the records: the rows of `frame(superseded=True)`."""
    bytes_before: int
    bytes_after: int
    path: Path
    damaged: int = 0
    """Lines that could not be read; records.damaged.jsonl keeps them unchanged."""
    already: bool = False
    """Whether there was nothing left to do."""

    def __str__(self) -> str:
        content = f"{_count(self.records, 'record')} with {_count(self.rows, 'number')}"
        before, after = (f"{size / 1e6:,.2f} MB" for size in (self.bytes_before, self.bytes_after))
        if self.already:
            return f"{self.path} is already compacted: {content} in {after}"
        damaged = f"; kept in {DAMAGED}: {_count(self.damaged, 'damaged line')}" if self.damaged else ""
        return f"{self.path}: {content}, {before} before, {after} now{damaged}"


def compact(path: str | Path, *, killed: bool = False, progress: Progress | None = None) -> CompactInfo:
    """Turn a finished run's records.jsonl into records.parquet; runs can be read in either form.

    The Parquet file is read back and compared with the lines, record by record, before they are removed. A run that
    is being written is refused. `killed` allows a run whose status is still "running" because its process was killed.
    """
    folder = Path(path)
    backend = FolderBackend.existing(folder)
    load("pyarrow", "compacting a run")
    if backend.manifest().get("status") == "running" and not killed:
        raise RunError(
            f"{folder} says that it is still being written. If its process was killed, say so: "
            "compact(..., killed=True), or learnscope compact --killed."
        )
    before = _bytes(folder)
    with closing(backend):
        if (folder / LINES).exists():
            backend.hold()
        with opened(folder) as parts:
            if parts.parquet is None and parts.lines is None:
                raise RunError(f"{folder} has no records to compact: there is no {LINES} in it.")
            nothing_new = parts.lines is None or parts.lines.seek(0, os.SEEK_END) <= parts.start
            already = parts.parquet is not None and nothing_new
            damaged = 0 if already or parts.lines is None else _replace(folder, parts, progress)
        _sync(folder)
        (folder / LINES).unlink(missing_ok=True)  # while locked, so that no writer has it open
        remove_index(folder)
    with opened(folder) as parts:
        records, rows = parts.parquet.metadata.num_rows, parts.compacted.rows
    return CompactInfo(records, rows, before, _bytes(folder), folder, damaged, already)


def _replace(folder: Path, parts: Parts, progress: Progress | None) -> int:
    """Write a new records.parquet with the old one's records and the lines since; returns how many were damaged."""
    damaged: list[bytes] = []

    def write(temporary: Path) -> None:
        problems = _write(temporary, folder, parts, damaged, _share(progress, 0))
        _keep_damaged(folder, len(problems) - len(damaged), damaged)
        _verify(temporary, folder, _share(progress, 1))

    write_atomically(folder / parquet.NAME, write)
    return len(damaged)


def _write(target: Path, folder: Path, parts: Parts, damaged: list[bytes], progress: Progress) -> list[str]:
    """Fill `target`, collect the damaged lines, and return all problems, those of earlier compactions first."""
    pq = load("pyarrow.parquet", "compacting a run")
    assert parts.lines is not None
    covered = Compacted.all_of(parts.lines)
    rows, problems = parts.compacted.rows, list(parts.compacted.problems)
    with pq.ParquetWriter(target, parquet.schema(), compression="zstd") as writer:
        for batch in parts.parquet.iter_batches() if parts.parquet else ():
            writer.write_batch(batch)
        for segment in parts.new_segments(folder, certain=True):
            damaged += segment.damaged
            problems += segment.problems
            for group in groups(segment):
                writer.write_table(table(group))
                rows += group.numbers
            progress(segment.end, covered.size)
        writer.add_key_value_metadata(replace(covered, rows=rows, problems=problems).metadata())
    return problems


def _verify(target: Path, folder: Path, progress: Progress) -> None:
    """Compare every record of the new file with the numbers it was made from, and some with their lines."""
    arrow, pq = load("pyarrow", "compacting a run"), load("pyarrow.parquet", "compacting a run")
    with opened(folder) as parts, pq.ParquetFile(target) as file:
        total, size = file.metadata.num_rows, (folder / LINES).stat().st_size
        row_groups = (file.read_row_group(number) for number in range(file.metadata.num_row_groups))
        done = 0
        for batch in parts.parquet.iter_batches() if parts.parquet else ():
            if not arrow.Table.from_batches([batch]).equals(next(row_groups, None) or parquet.schema().empty_table()):
                raise RunError(_changed(folder, done + 1, next(iter(parquet.records_of(batch)))))
            done += batch.num_rows
        for segment in parts.new_segments(folder):
            lines = _lines(parts, segment)
            for group in groups(segment):
                read = next(row_groups, None) or parquet.schema().empty_table()
                wrong = difference(group, read) or sampled_difference(group, read, lines, segment.first)
                if wrong is not None:
                    raise RunError(_changed(folder, done + 1, wrong))
                done += len(group.order)
                progress(size * done // total, size)
        if done != total:
            raise RunError(
                f"{folder} would have {total:,} records in Parquet instead of {done:,}: nothing was changed."
            )


def _lines(parts: Parts, segment: Segment) -> list[bytes]:
    assert parts.lines is not None
    parts.lines.seek(segment.start)
    return parts.lines.read(segment.end - segment.start).split(b"\n")


def _changed(folder: Path, number: int, record: Record) -> str:
    return (
        f"record {number} of {folder} or one after it did not come back from Parquet as it was, so nothing was "
        f"changed. Please report this with the record: {record}"
    )


def _keep_damaged(folder: Path, earlier: int, damaged: list[bytes]) -> None:
    """Add the damaged lines to those kept before; not twice, if an earlier attempt stopped after this step."""
    if not damaged:
        return
    path = folder / DAMAGED
    lines = path.read_bytes().split(b"\n")[:earlier] if path.exists() else []
    body = b"".join(line + b"\n" for line in (*lines, *damaged))
    write_atomically(path, lambda temporary: temporary.write_bytes(body))


def _sync(folder: Path) -> None:
    """Make sure that the new file's name is on the disk before the old file is removed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _bytes(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in _FILES if (folder / name).exists())


def _share(progress: Progress | None, half: int) -> Progress:
    """Progress of writing (0) or comparing (1), each half of the work."""
    return lambda done, total: progress(half * total + done, 2 * total) if progress else None


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number != 1)
