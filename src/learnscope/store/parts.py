"""The files that hold a run's records: what was compacted, and the lines written since.

Compacting ends with two steps: the Parquet file is put in place, and records.jsonl is removed. A crash between them
leaves both with the same records; so the Parquet file states which lines it contains, and those are not read again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from learnscope.record import SCHEMA_VERSION, Record
from learnscope.store import parquet
from learnscope.store.backend import RunError, load
from learnscope.store.columnar.blocks import Segment
from learnscope.store.columnar.decode import Decoder, pieces_of
from learnscope.store.columnar.index import indexed
from learnscope.store.lines import records_in

LINES = "records.jsonl"
_KEY = b"learnscope"
_HEAD = 4096
_LINES_AT_ONCE = 2048


@dataclass(frozen=True)
class Compacted:
    """The metadata of a records.parquet, with length and hashes of the lines it contains; by default, none."""

    size: int = 0
    head: str = ""
    whole: str = ""
    rows: int = 0
    problems: list[str] = field(default_factory=list)

    @classmethod
    def all_of(cls, lines: BinaryIO) -> Compacted:
        size = lines.seek(0, os.SEEK_END)
        return cls(size, _hash(lines, min(size, _HEAD)), _hash(lines, size))

    @classmethod
    def of(cls, file: Any) -> Compacted:
        body = json.loads(file.metadata.metadata[_KEY])
        return cls(**body["covered"], rows=body["rows"], problems=body["problems"])

    def metadata(self) -> dict[bytes, bytes]:
        covered = {"size": self.size, "head": self.head, "whole": self.whole}
        body = {"schema": SCHEMA_VERSION, "rows": self.rows, "problems": self.problems, "covered": covered}
        return {_KEY: json.dumps(body).encode()}

    def length_in(self, lines: BinaryIO) -> int:
        """How many bytes of `lines` the Parquet file contains: `size`, or 0 if this is another file."""
        size = self.size
        if size == 0 or lines.seek(0, os.SEEK_END) < size or _hash(lines, min(size, _HEAD)) != self.head:
            return 0
        return size if _hash(lines, size) == self.whole else 0


@dataclass(frozen=True)
class Parts:
    """A run's records as they were when opened. `lines` is positioned where the lines not yet compacted begin."""

    lines: BinaryIO | None = None
    start: int = 0
    parquet: Any = None
    compacted: Compacted = Compacted()

    def new_lines(self) -> Iterator[bytes]:
        """The lines that are not compacted, without their line ends."""
        return (line.rstrip(b"\n") for line in self.lines or ())

    def records(self, problems: list[str]) -> Iterator[Record]:
        """Every record in the order of writing; what is wrong with other lines is added to `problems`."""
        problems += self.compacted.problems
        if self.parquet is not None:
            yield from self._compacted_records()
        yield from records_in(self.new_lines(), problems)

    def segments(self, folder: Path) -> list[Segment]:
        """The same by their form."""
        compacted: list[Segment] = []
        if self.parquet is not None:
            lines = (json.dumps(record.body()).encode() + b"\n" for record in self._compacted_records())
            pieces = iter(lambda: b"".join(islice(lines, _LINES_AT_ONCE)), b"")
            compacted = list(Decoder().segments(pieces))
            compacted.append(Segment(0, 0, 0, 0, (), problems=self.compacted.problems))
        shift = sum(segment.lines for segment in compacted)
        return compacted + [replace(segment, shift=shift) for segment in self.new_segments(folder)]

    def new_segments(self, folder: Path, *, certain: bool = False) -> list[Segment]:
        """The lines that are not compacted, from the folder's index as far as it has them; `certain`: see there."""
        if self.lines is None:
            return []
        if not self.start:
            return indexed(folder, self.lines, certain=certain)
        size = self.lines.seek(0, os.SEEK_END) - self.start
        self.lines.seek(self.start)
        return list(Decoder().segments(pieces_of(self.lines, size), self.start))

    def _compacted_records(self) -> Iterator[Record]:
        arrow = load("pyarrow", "reading Parquet")
        try:
            yield from parquet.records(self.parquet)
        except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{parquet.NAME} is damaged ({error})") from error


@contextmanager
def opened(folder: Path) -> Iterator[Parts]:
    """The parts of a run folder. The lines are opened first: they are removed only once the Parquet file has them."""
    with ExitStack() as stack:
        lines: BinaryIO | None = None
        try:
            lines = stack.enter_context((folder / LINES).open("rb"))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RunError(f"{folder / LINES} cannot be read ({error})") from error
        path = folder / parquet.NAME
        if not path.exists():
            yield Parts(lines)
            return
        arrow = load("pyarrow", f"{folder} is a compacted run: reading its {parquet.NAME}")
        try:
            file = stack.enter_context(load("pyarrow.parquet", "reading Parquet").ParquetFile(path))
            compacted = Compacted.of(file)
        except (arrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path} is damaged or was not written by `learnscope compact` ({error}).") from error
        start = 0 if lines is None else compacted.length_in(lines)
        if lines is not None:
            lines.seek(start)
        yield Parts(lines, start, file, compacted)


def _hash(file: BinaryIO, size: int) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
