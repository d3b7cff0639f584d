"""How a table is written: its encoding, separator and decimal sign, its head, and whether its end was cut off."""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from learnscope.store.errors import RunError

_SAMPLE = 1 << 16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_SEPARATORS = ",;\t|"
_COMMA_NUMBER = re.compile(r"-?\d*,\d+(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Form:
    """What pandas has to be told of a table."""

    encoding: str
    separator: str
    decimal: str
    names: list[str]
    head: int
    """Lines up to the end of the head."""
    rows: int
    """That are whole."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def line_of(self, row: int) -> int:
        """The line of a row, where no cell holds a line's end and no line is blank."""
        return self.head + 1 + row


def form_of(path: Path) -> Form:
    """Read off the first 64 kB, and the last line."""
    with path.open("rb") as file:
        start = file.read(_SAMPLE)
    if not start.strip():
        raise RunError(f"{path} is empty")
    notes: list[str] = []
    encoding = _encoding(path, start, notes)
    sample = start.decode(encoding, errors="ignore" if len(start) == _SAMPLE else "strict")
    if "\0" in sample:
        raise RunError(f"{path} is no text: it has zero bytes")
    lines = sample.splitlines()
    blank = next(n for n, line in enumerate(lines) if line.strip())
    separator = _separator(lines[blank : blank + 20])
    names = _names(path, lines[blank], separator, notes)
    cells = [cell for line in lines[blank + 1 : blank + 21] for cell in line.split(separator)]
    decimal = "," if separator != "," and any(_COMMA_NUMBER.fullmatch(cell.strip()) for cell in cells) else "."
    rows, problems = _rows(path, encoding, separator, len(names), blank)
    return Form(encoding, separator, decimal, names, blank + 1, rows, problems, notes)


def _encoding(path: Path, start: bytes, notes: list[str]) -> str:
    for mark, encoding in _MARKS:
        if start.startswith(mark):
            return encoding
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        notes.append(f"{path.name} is not UTF-8 ({error.reason}): it was read as Latin-1")
        return "latin-1"
    return "utf-8"


def _separator(lines: list[str]) -> str:
    """The sign that splits the first lines into the same number of cells, the most cells if several do."""
    best, most = ",", 1
    for sign in _SEPARATORS:
        widths = [len(row) for row in csv.reader(lines, delimiter=sign, skipinitialspace=True) if row]
        usual, often = Counter(widths).most_common(1)[0]
        if usual > most and often >= len(widths) / 2 and widths[0] == usual:
            best, most = sign, usual
    return best


def _names(path: Path, line: str, separator: str, notes: list[str]) -> list[str]:
    """The names in the head; one that comes twice gets a number, an empty one its place."""
    cells = [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]
    if all(_is_number(cell) for cell in cells):
        raise RunError(f"{path} has no head: its first line is {line[:80]!r}. Add a line with the names of the columns")
    names: list[str] = []
    for place, cell in enumerate(cells, 1):
        name = free = cell or f"column {place}"
        number = 1
        while free in names:
            number += 1
            free = f"{name}.{number}"
        if free != cell:
            notes.append(f"column {place} of {path.name}, called {cell!r}, is {free!r} here")
        names.append(free)
    return names


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True


def _rows(path: Path, encoding: str, separator: str, width: int, blank: int) -> tuple[int, list[str]]:
    """How many rows are whole. A last line without an end that has too few cells was cut off by a kill."""
    lines, last = 0, ""
    with path.open(encoding=encoding, newline="") as file:
        for line in file:
            if line.strip():
                lines += 1
                last = line
    rows = lines - 1
    torn = rows > 0 and not last.endswith(("\n", "\r")) and last.count(separator) < width - 1
    if not torn:
        return rows, []
    return rows - 1, [f"{path.name}: the last line, {lines + blank}, is cut off ({last[:60]!r}) and was left out"]
