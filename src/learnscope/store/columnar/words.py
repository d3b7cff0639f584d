"""The numbers of an index on disk, as 8-byte words: read when they are asked for, and checked by their sums."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.store.columnar.blocks import Floats, Ints, MemoryBlock, Segment
from learnscope.store.columnar.decode import Decoder, pieces_of
from learnscope.store.columnar.forms import Form
from learnscope.store.errors import RunError

WORD = 8


def check_sum(words: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(words).data)


class Damaged(Exception):
    """Words that are not there, or not those that were written."""


@dataclass(frozen=True)
class DiskBlock:
    """A block whose numbers are read when they are asked for: its order, then each number of all its records."""

    form: Form
    words: Words
    offset: int
    records: int
    checks: list[int]

    @cached_property
    def order(self) -> Ints:
        return self._read(0).view(np.int64)

    def rows(self, places: Sequence[int]) -> Floats:
        rows = np.empty((len(places), self.records))
        first = 0
        while first < len(places):  # a call for all that stand together: a record may have 10⁵ numbers
            last = first + 1
            while last < len(places) and places[last] == places[last - 1] + 1:
                last += 1
            rows[first:last] = self._read_together(1 + places[first], last - first)
            first = last
        return rows

    def _read_together(self, row: int, count: int) -> Floats:
        try:
            words = self.words.read_rows(self.offset + row * self.records, self.records, self.checks[row : row + count])
        except Damaged:
            return np.stack([self._read(each) for each in range(row, row + count)])
        return words

    def _read(self, row: int) -> Floats:
        try:
            return self.words.read(self.offset + row * self.records, self.records, self.checks[row])
        except Damaged:
            block = self.words.block_again(self.form)
            return block.order.view(np.float64) if row == 0 else block.numbers[row - 1]


@dataclass(frozen=True)
class Words:
    """The file with the words of a segment, and the lines that it was made from."""

    path: Path
    lines: Path
    start: int
    end: int
    first: int

    def read(self, offset: int, count: int, check: int) -> Floats:
        words: Floats = self.read_rows(offset, count, [check])[0]
        return words

    def read_rows(self, offset: int, count: int, checks: Sequence[int]) -> Floats:
        """Rows of `count` words, one for each of the sums, which stand one after the other."""
        try:
            words = np.fromfile(self.path, np.float64, count * len(checks), offset=offset * WORD)
        except OSError as error:
            raise Damaged from error
        if len(words) != count * len(checks):
            raise Damaged
        rows: Floats = words.reshape(len(checks), count)
        if any(check_sum(row) != check for row, check in zip(rows, checks, strict=True)):
            raise Damaged
        return rows

    def block_again(self, form: Form) -> MemoryBlock:
        self.path.unlink(missing_ok=True)  # the next reader writes it again
        return next(block for block in self._again if block.form == form)

    @cached_property
    def _again(self) -> list[MemoryBlock]:
        try:
            with self.lines.open("rb") as file:
                file.seek(self.start)
                segments = list(Decoder().segments(pieces_of(file, self.end - self.start), self.start, self.first))
        except OSError as error:
            raise RunError(f"{self.path} is damaged, and {self.lines} cannot be read ({error})") from error
        return list(_joined(segments))


def _joined(segments: Iterable[Segment]) -> Iterator[MemoryBlock]:
    """The blocks of several segments, one for each form."""
    parts: dict[Form, list[Any]] = {}
    for block in (block for segment in segments for block in segment.blocks):
        parts.setdefault(block.form, []).append(block)
    for form, blocks in parts.items():
        order = np.concatenate([block.order for block in blocks])
        yield MemoryBlock(form, order, np.concatenate([block.numbers for block in blocks], axis=1))


def write_words(path: Path, words: Sequence[Any]) -> None:
    with path.open("wb") as file:
        for array in words:
            array.tofile(file)
