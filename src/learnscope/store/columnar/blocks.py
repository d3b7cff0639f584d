"""Blocks and segments: the records of one form in some megabytes of lines, and all that was in those lines.

What has no form that can be relied on is kept as single records. A block may be on disk (`index.py`); then only the
numbers that are asked for are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from learnscope.record import Record
from learnscope.store.columnar.forms import Form

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Block(Protocol):
    """The records of one form in one segment."""

    @property
    def form(self) -> Form: ...

    @property
    def order(self) -> Ints:
        """Of each record, how many lines of the run stand before it."""

    def rows(self, places: Sequence[int]) -> Floats:
        """The numbers at these places of the form: one row for each place, one column for each record."""


@dataclass(frozen=True)
class MemoryBlock:
    """A block that is in memory as a whole."""

    form: Form
    order: Ints
    numbers: Floats

    def rows(self, places: Sequence[int]) -> Floats:
        rows: Floats = self.numbers[list(places)]
        return rows


@dataclass(frozen=True)
class Loose:
    """A record that is kept as a single one, with its line and how many lines stand before it."""

    order: int
    line: bytes
    record: Record

    @classmethod
    def of(cls, order: int, line: bytes) -> Loose:
        return cls(order, line, Record.from_json(line))


@dataclass(frozen=True)
class Segment:
    """The records of some lines, which are bytes `start` to `end` of their file and begin with line `first`, from 0."""

    start: int
    end: int
    first: int
    lines: int
    blocks: Sequence[Block]
    loose: Sequence[Loose] = ()
    problems: Sequence[str] = ()
    """What is wrong with each line that is no record."""
    damaged: Sequence[bytes] = ()
    """Those lines."""
    shift: int = 0
    """How many records of the run stand before the file."""
