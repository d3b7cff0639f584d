"""The files that hold a run's records: what was compacted, and the lines written since.

Compacting ends with two steps, the Parquet file put in place and records.jsonl removed. A crash between them leaves
both with the same records; so the Parquet file says which lines it has taken in, and those are not read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from learnscope.record import SCHEMA_VERSION
from learnscope.store.backend import RunError
from learnscope.store.extras import load
from learnscope.store.parquet import NAME as PARQUET

LINES = "records.jsonl"
_KEY = b"learnscope"
_HEAD = 4096


@dataclass(frozen=True)
class Covered:
    """The beginning of a records.jsonl that a Parquet file has taken in: how long, and its fingerprints."""

    size: int
    head: str
    whole: str

    @classmethod
    def all_of(cls, file: BinaryIO) -> Covered:
        size = file.seek(0, 2)
        return cls(size, _hash(file, min(size, _HEAD)), _hash(file, size))

    def length_in(self, file: BinaryIO) -> int:
        """How many bytes of `file` are taken in: all that this describes, or none because it is another file."""
        if self.size == 0 or file.seek(0, 2) < self.size or _hash(file, min(self.size, _HEAD)) != self.head:
            return 0
        return self.size if _hash(file, self.size) == self.whole else 0


@dataclass(frozen=True)
class Compacted:
    """What a records.parquet says about itself."""

    covered: Covered
    rows: int
    problems: list[str] = field(default_factory=list)

    def metadata(self) -> dict[bytes, bytes]:
        body = {"schema": SCHEMA_VERSION, "rows": self.rows, "problems": self.problems, "covered": vars(self.covered)}
        return {_KEY: json.dumps(body).encode()}

    @classmethod
    def of(cls, parquet: Any) -> Compacted:
        body = json.loads(parquet.metadata.metadata[_KEY])
        return cls(Covered(**body["covered"]), body["rows"], body["problems"])


@dataclass(frozen=True)
class Parts:
    """A run's records as they stood when they were opened. `lines` stands where what was not compacted begins."""

    lines: BinaryIO | None = None
    start: int = 0
    parquet: Any = None
    compacted: Compacted | None = None


@contextmanager
def opened(folder: Path) -> Iterator[Parts]:
    """The parts of a run folder. The lines are opened first: they go away only once the Parquet file has them."""
    with ExitStack() as stack:
        lines = _lines(folder, stack)
        if not (folder / PARQUET).exists():
            yield Parts(lines)
            return
        arrow = load("pyarrow", f"{folder} is a compacted run: reading its {PARQUET}")
        try:
            parquet = stack.enter_context(load("pyarrow.parquet", "reading Parquet").ParquetFile(folder / PARQUET))
            compacted = Compacted.of(parquet)
        except (arrow.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{folder / PARQUET} is damaged or was not written by `learnscope compact` ({error})."
            ) from error
        start = 0 if lines is None else compacted.covered.length_in(lines)
        if lines is not None:
            lines.seek(start)
        yield Parts(lines, start, parquet, compacted)


def _lines(folder: Path, stack: ExitStack) -> BinaryIO | None:
    try:
        return stack.enter_context((folder / LINES).open("rb"))
    except FileNotFoundError:
        return None


def _hash(file: BinaryIO, size: int) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
