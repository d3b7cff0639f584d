"""The columns of a run's lines, kept beside them, so that opening a run does not parse everything again.

    index/catalog.json   which lines are covered: their hashes, their forms, and where the numbers stand
    index/<hash>.words   the numbers of one segment of lines, and their order, as 8-byte words

The lines are the truth. A catalog is used as far as the hashes of its segments are those of the lines (not computed
again while the file is untouched); numbers are read with their check sums. What is missing or damaged is read from the
lines and, where the folder can be written, kept again. Short runs have no index: reading them takes no time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from learnscope.record import ProbeWarning
from learnscope.store.columnar.blocks import Loose, Segment
from learnscope.store.columnar.catalog import CATALOG, read_catalog, write_catalog
from learnscope.store.columnar.decode import Decoder, pieces_of
from learnscope.store.columnar.words import WORD, DiskBlock, Words, check_sum, write_words
from learnscope.store.files import write_atomically

FOLDER = "index"
WORTH_KEEPING = 1 << 20
"""Bytes of lines that are kept in an index; fewer are read in an instant."""
_SETTLED_SECONDS = 2.0
"""A file that was written to so lately may be written to again without a sign of it in its times."""


def indexed(folder: Path, lines: BinaryIO, *, certain: bool = False) -> list[Segment]:
    """The segments of all lines of a run folder; what the index lacks is read, and added to it if it can be.

    `certain`: the lines are compared with their hashes, whatever the file's times say.
    """
    there = os.fstat(lines.fileno())
    index = _Index(folder, lines, there, certain)
    size = index.whole_lines()
    kept = index.usable()
    end, first = (kept[-1].end, kept[-1].first + kept[-1].lines) if kept else (0, 0)
    lines.seek(end)
    keep = size - end >= WORTH_KEEPING
    new = index.kept(end, size, first) if keep else Decoder().segments(pieces_of(lines, size - end), end, first)
    segments = [*kept, *new]
    if keep or (kept and not index.is_settled):
        index.put()
    first = segments[-1].first + segments[-1].lines if segments else 0
    lines.seek(size)
    return [*segments, *Decoder().segments(pieces_of(lines, there.st_size - size), size, first)]


def known(folder: Path, lines: BinaryIO) -> list[Segment]:
    """The segments that the index has of these lines, from the first on; writes nothing."""
    return _Index(folder, lines, os.fstat(lines.fileno()), certain=False).usable()


def refresh(folder: Path) -> None:
    """Bring the index of a run that is closed up to date; best effort, since a reader does it too."""
    try:
        if not (folder / "records.parquet").exists():
            with (folder / "records.jsonl").open("rb") as lines:
                if os.fstat(lines.fileno()).st_size >= WORTH_KEEPING:
                    indexed(folder, lines)
    except OSError:  # the folder is gone or cannot be read: whoever opens the run is told
        return
    except Exception as error:  # noqa: BLE001  (a run that has ended must not fail for what is only a help to readers)
        message = f"{folder} has no index, and will be read more slowly ({type(error).__name__}: {error})"
        warnings.warn(message, ProbeWarning, stacklevel=2)


def remove_index(folder: Path) -> None:
    """Of lines that are no longer there."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


class _Index:
    """The index of a run folder, for one reader."""

    def __init__(self, folder: Path, lines: BinaryIO, there: os.stat_result, certain: bool) -> None:
        self.folder, self.lines, self._there = folder / FOLDER, lines, there
        self._certain = certain
        self._path = folder / "records.jsonl"
        self._found, self._form_objects = read_catalog(self.folder / CATALOG)
        self.forms: list[dict[str, Any]] = self._found.get("forms", [])
        self.entries: list[dict[str, Any]] = []
        self._writable = True

    def whole_lines(self) -> int:
        """The size of the file up to its last line end: a line that is being written has none yet."""
        size = self._there.st_size
        while size:
            start = max(0, size - (1 << 16))
            self.lines.seek(start)
            end = self.lines.read(size - start).rfind(b"\n")
            if end >= 0:
                return start + end + 1
            size = start
        return 0

    @property
    def _times(self) -> dict[str, int]:
        there = self._there
        return {
            "size": there.st_size,
            "inode": there.st_ino,
            "written": there.st_mtime_ns,
            "changed": there.st_ctime_ns,
        }

    @property
    def is_settled(self) -> bool:
        return bool(self._found.get("file") == self._times)

    def usable(self) -> list[Segment]:
        """The segments that are of these lines, from the first on."""
        segments = []
        for entry in self._found.get("segments", []):
            words = self.folder / entry["file"]
            there = words.stat().st_size if words.is_file() else -1
            of_these = (self.is_settled and not self._certain) or (
                entry["end"] <= self._there.st_size and _hash(self.lines, entry["start"], entry["end"]) == entry["hash"]
            )
            if there != entry["words"] * WORD or not of_these:
                break
            try:
                segments.append(self.segment(entry))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # single records that are none
                break
            self.entries.append(entry)
        return segments

    def segment(self, entry: dict[str, Any]) -> Segment:
        words = Words(self.folder / entry["file"], self._path, entry["start"], entry["end"], entry["first"])
        blocks, offset = [], 0
        for form, records, checks in entry["blocks"]:
            blocks.append(DiskBlock(self._form_objects[form], words, offset, records, checks))
            offset += records * len(checks)
        loose = [Loose.of(order, line.encode()) for order, line in entry["loose"]]
        damaged = [line.encode("latin-1") for line in entry["damaged"]]
        return Segment(
            entry["start"], entry["end"], entry["first"], entry["lines"], blocks, loose, entry["problems"], damaged
        )

    def kept(self, start: int, end: int, first: int) -> Iterator[Segment]:
        """Read these lines, and write what was read, segment by segment, so that memory holds one at a time."""
        self.lines.seek(start)
        pieces = _Hashed(pieces_of(self.lines, end - start))
        for segment in Decoder().segments(pieces, start, first):
            yield self._keep(segment, pieces.digest())

    def _keep(self, segment: Segment, digest: str) -> Segment:
        """The segment on disk, or as it is if that cannot be written."""
        if not self._writable:
            return segment
        entry = self._entry(segment, digest)
        words = [array for block in segment.blocks for array in (block.order, block.rows(range(block.form.width)))]
        try:
            write_atomically(self.folder / entry["file"], lambda path: write_words(path, words), durable=False)
        except OSError:
            self._writable = False
            return segment
        self.entries.append(entry)
        return self.segment(entry)

    def _entry(self, segment: Segment, digest: str) -> dict[str, Any]:
        blocks: list[tuple[int, int, list[int]]] = []
        for block in segment.blocks:
            body = {"text": block.form.text.decode(), "labels": list(block.form.labels)}
            if body not in self.forms:
                self.forms.append(body)
                self._form_objects.append(block.form)
            rows = [block.order, *block.rows(range(block.form.width))]
            blocks.append((self.forms.index(body), len(block.order), [check_sum(row) for row in rows]))
        return {
            "file": f"{segment.start}-{segment.end}-{digest[:12]}.words", "hash": digest, "start": segment.start,
            "end": segment.end, "first": segment.first, "lines": segment.lines,
            "words": sum(records * len(checks) for _, records, checks in blocks), "blocks": blocks,
            "loose": [[loose.order, loose.line.decode()] for loose in segment.loose],
            "problems": list(segment.problems),
            "damaged": [line.decode("latin-1") for line in segment.damaged],
        }  # fmt: skip

    def put(self) -> None:
        """Write the catalog, and remove the files of the one before that it does not name."""
        settled = time.time() - self._there.st_mtime > _SETTLED_SECONDS
        file = self._times if settled else None
        try:
            if self._writable:
                body = {"file": file, "forms": self.forms, "segments": self.entries}
                write_catalog(self.folder / CATALOG, body)
                before, now = (
                    {entry["file"] for entry in each} for each in (self._found.get("segments", []), self.entries)
                )
                for name in before - now:
                    (self.folder / name).unlink(missing_ok=True)
        except OSError:  # a folder that cannot be written is read without an index
            pass


class _Hashed:
    """Pieces of a file, and the hash of those since the last `digest`."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._hash = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._hash.update(piece)
            yield piece

    def digest(self) -> str:
        digest, self._hash = self._hash.hexdigest(), hashlib.sha256()
        return digest


def _hash(file: BinaryIO, start: int, end: int) -> str:
    file.seek(start)
    pieces = _Hashed(iter(lambda: file.read(min(1 << 20, end - file.tell())), b""))
    for _ in pieces:
        pass
    return pieces.digest()
