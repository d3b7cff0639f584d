"""From lines to segments: lines are taken apart, and those with the same text around their numbers come together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from learnscope.store.columnar.blocks import Floats, Ints, Loose, MemoryBlock, Segment
from learnscope.store.columnar.forms import Form, form_of
from learnscope.store.columnar.tokens import Pieces, take_apart
from learnscope.store.lines import parse_line

PIECE = 1 << 20
"""Bytes of lines that are taken apart at once: more do not fit into the processor's caches."""
NUMBERS_A_SEGMENT = 1 << 22
_MOST_FORMS = 4096
"""Forms after which records of further forms are kept as single ones."""
_LOOSE = -2


@dataclass
class _Gathered:
    """What was read for the next segment."""

    start: int
    first: int
    order: dict[int, list[Ints]] = field(default_factory=dict)
    numbers: dict[int, list[Floats]] = field(default_factory=dict)
    loose: list[Loose] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    damaged: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, code: int, order: Ints, numbers: Floats) -> None:
        self.order.setdefault(code, []).append(order)
        self.numbers.setdefault(code, []).append(numbers)
        self.size += numbers.size


class Decoder:
    """Reads lines into segments. Forms are known from one segment to the next."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}
        self._forms: list[Form] = []
        self._with_labels: dict[Form, int] = {}

    def segments(self, pieces: Iterable[bytes], start: int = 0, first: int = 0) -> Iterator[Segment]:
        """Of pieces that each end with a line end; the first begins at byte `start`, which is line `first`."""
        gathered, end, line = _Gathered(start, first), start, first
        for piece in pieces:
            line = self._add(gathered, piece, line)
            end += len(piece)
            if gathered.size >= NUMBERS_A_SEGMENT:
                yield self._segment(gathered, end, line)
                gathered = _Gathered(end, line)
        if end > gathered.start:
            yield self._segment(gathered, end, line)

    def _segment(self, gathered: _Gathered, end: int, line: int) -> Segment:
        blocks = []
        for code, order in gathered.order.items():
            numbers = np.concatenate([part.T for part in gathered.numbers.pop(code)], axis=1)
            blocks.append(MemoryBlock(self._forms[code], np.concatenate(order), np.ascontiguousarray(numbers)))
        count = line - gathered.first
        return Segment(
            gathered.start, end, gathered.first, count, blocks, gathered.loose, gathered.problems, gathered.damaged
        )

    def _add(self, gathered: _Gathered, piece: bytes, first: int) -> int:
        """Take in a piece whose first line is line `first`; returns the line after it."""
        apart = take_apart(piece)
        codes = np.fromiter((self._codes.get(text, -1) for text in apart.texts), np.int64, len(apart.texts))
        codes[apart.odd] = _LOOSE
        for place in np.flatnonzero(codes < 0).tolist():
            line = _line(piece, apart, place)
            numbers = apart.numbers[apart.first[place] : apart.first[place + 1]].tolist()
            code = self._code(apart.texts[place], line, numbers) if codes[place] == -1 else _LOOSE
            codes[place] = code
            if code == _LOOSE:
                _take_alone(gathered, first + place, line)
        by_code = np.argsort(codes, kind="stable")
        cuts = np.flatnonzero(np.diff(codes[by_code])) + 1
        for places in np.split(by_code, cuts) if len(by_code) else ():
            if (code := int(codes[places[0]])) < 0:
                continue
            numbers = _matrix(apart, places, self._forms[code].width)
            if not self._take(gathered, code, places + first, numbers):
                for place in places.tolist():
                    _take_alone(gathered, first + place, _line(piece, apart, place))
        return first + len(apart.texts)

    def _take(self, gathered: _Gathered, code: int, order: Ints, numbers: Floats) -> bool:
        """Add the records of a text to those of their form, of which the numbers among their labels are part.

        False if these labels are too many to be part of a form.
        """
        form = self._forms[code]
        if not form.label_places:
            gathered.add(code, order, numbers)
            return True
        labels = numbers[:, form.label_places]
        if (labels == labels[0]).all():
            distinct, of_record = labels[:1], np.zeros(len(labels), np.int64)
        else:
            distinct, of_record = np.unique(labels, axis=0, return_inverse=True)
        forms = [form.with_labels(values) for values in distinct.tolist()]
        if len(self._with_labels.keys() | set(forms)) > _MOST_FORMS:
            return False
        for number, full in enumerate(forms):
            if full not in self._with_labels:
                self._with_labels[full] = len(self._forms)
                self._forms.append(full)
            chosen = of_record.ravel() == number
            gathered.add(self._with_labels[full], order[chosen], numbers[chosen])
        return True

    def _code(self, text: bytes, line: bytes, numbers: list[float]) -> int:
        if text not in self._codes:
            if len(self._codes) >= _MOST_FORMS:
                return _LOOSE
            form = form_of(text, line, numbers)
            self._codes[text] = _LOOSE if form is None else len(self._forms)
            self._forms += [] if form is None else [form]
        return self._codes[text]


def _take_alone(gathered: _Gathered, order: int, line: bytes) -> None:
    """Read a single line, unless it is blank."""
    if line.strip():
        record = parse_line(order + 1, line)
        if isinstance(record, str):
            gathered.problems.append(record)
            gathered.damaged.append(line)
        else:
            gathered.loose.append(Loose(order, line, record))


def _matrix(apart: Pieces, places: Ints, width: int) -> Floats:
    numbers: Floats = apart.numbers[apart.first[places][:, None] + np.arange(width)]
    return numbers


def _line(piece: bytes, apart: Pieces, place: int) -> bytes:
    return piece[0 if place == 0 else int(apart.ends[place - 1]) + 1 : int(apart.ends[place])]


def pieces_of(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The next `size` bytes of a file in pieces that each end with a line end, added to the last one if need be."""
    rest = b""
    while size > 0 and (data := file.read(min(size, PIECE))):
        size -= len(data)
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
    if rest:
        yield rest + b"\n"
