"""Runs that are still being written, read again and again: each time only what was added, and nothing is written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from learnscope.record import Record
from learnscope.store.backend import Backend, FolderBackend, MemoryBackend
from learnscope.store.columnar.blocks import Segment
from learnscope.store.columnar.decode import Decoder, pieces_of
from learnscope.store.columnar.index import WORTH_KEEPING, known
from learnscope.store.locks import is_locked
from learnscope.store.parts import LINES, opened
from learnscope.store.reader import RunReader

SETTLED_SECONDS = 2.0
"""A last line without an end is being written, unless nothing came for so long."""
_AT_ONCE = 1024


class _Read:
    """What has been read of lines to which more are added. The last megabyte is read again, with what came after it:
    otherwise each reading would leave a segment of few lines, and there would be thousands."""

    def __init__(self, settled: Sequence[Segment] = ()) -> None:
        self._settled = list(settled)
        self._decoder = Decoder()

    @property
    def end(self) -> int:
        """The byte up to which nothing is read again."""
        return self._settled[-1].end if self._settled else 0

    @property
    def lines(self) -> int:
        """The same in lines."""
        return self._settled[-1].first + self._settled[-1].lines if self._settled else 0

    def on(self, pieces: Iterable[bytes], size: int) -> list[Segment]:
        """All segments, of which `pieces` are what follows the settled ones."""
        new = list(self._decoder.segments(pieces, self.end, self.lines))
        if size < WORTH_KEEPING:
            return [*self._settled, *new]
        self._settled += new
        return list(self._settled)


class GrowingFolder(FolderBackend):
    """A run folder that another session writes. It is never written from here: no index, no lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._read = _Read()
        self._inode: int | None = None
        self._whole: tuple[tuple[int, ...], list[Segment]] | None = None

    def segments(self) -> list[Segment]:
        with opened(self.path) as parts:
            if parts.parquet is not None:  # nobody adds to it in small steps
                sign = self.sign()
                if self._whole is None or self._whole[0] != sign:
                    self._whole = sign, parts.segments(self.path)
                return self._whole[1]
            return [] if parts.lines is None else self._new(parts.lines)

    def records(self, problems: list[str]) -> Iterator[Record]:
        with opened(self.path) as parts:
            yield from parts.records(problems)

    def sign(self) -> tuple[int, ...]:
        """Changes whenever the run does; costs next to nothing."""
        found: list[int] = []
        for name in ("run.json", "records.jsonl", "records.parquet", "shown.json"):
            try:
                there = (self.path / name).stat()
                found += [there.st_ino, there.st_size, there.st_mtime_ns]
            except OSError:
                found += [0, 0, 0]
        return (*found, is_locked(self.path / LINES) is True)  # a process that was killed leaves no other trace

    def _new(self, lines: BinaryIO) -> list[Segment]:
        there = os.fstat(lines.fileno())
        if there.st_ino != self._inode or there.st_size < self._read.end:
            self._inode, self._read = there.st_ino, _Read(known(self.path, lines))
        start = self._read.end
        size = there.st_size - start
        if time.time() - there.st_mtime < SETTLED_SECONDS:
            size = _whole_lines(lines, start, there.st_size) - start
        lines.seek(start)
        return self._read.on(pieces_of(lines, size), size)


class GrowingMemory(MemoryBackend):
    """The lines of a run in memory."""

    def __init__(self, run: MemoryBackend) -> None:
        super().__init__()
        self._run, self._lines, self._arrays = run, run._lines, run._arrays
        self._read = _Read()

    def manifest(self) -> dict[str, Any]:
        return self._run.manifest()

    def segments(self) -> list[Segment]:
        lines = self._lines[self._read.lines :]
        rest = iter(lines)
        pieces = iter(lambda: b"".join(line + b"\n" for line in islice(rest, _AT_ONCE)), b"")
        return self._read.on(pieces, sum(map(len, lines)))


def growing(backend: Backend) -> RunReader:
    """A reader for many readings of a run that grows."""
    if isinstance(backend, MemoryBackend):
        return RunReader(GrowingMemory(backend))
    return RunReader(GrowingFolder(backend.path))


def _whole_lines(lines: BinaryIO, start: int, size: int) -> int:
    """The byte after the last line end, or `start`."""
    while size > start:
        at = max(start, size - (1 << 16))
        lines.seek(at)
        end = lines.read(size - at).rfind(b"\n")
        if end >= 0:
            return at + end + 1
        size = at
    return start
