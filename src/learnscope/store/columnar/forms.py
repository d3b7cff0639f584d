"""The form of a record: all of it but its numbers. Records of one form differ only in these."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.characters import visible_json
from learnscope.record import HEADER, Column, Label, Record, Table
from learnscope.store.columnar.tokens import INTEGER

_NUMBER = re.compile(b"([\x01\x02])")
_SURE: dict[bytes, Form] = {}
"""Forms that lines were found to have, which other readers need not find again: runs of one program share theirs."""
_MOST_SURE, _SHORT = 256, 1 << 14
"""How many of them are kept, and the length of their texts up to which they are: a few megabytes in all."""
ABSENT = -1
"""In the place of a number: there is none."""


@dataclass(frozen=True)
class FormColumn:
    """A column of a table: everything but its values."""

    kind: str
    scopes: list[str]
    name: str
    labels: dict[str, Label]
    status: dict[int, str]
    places: NDArray[np.int64]
    """Of each value, which of the record's numbers it is."""


@dataclass(frozen=True)
class Form:
    """Read from the text of a line and, if its labels have numbers, those: a label is no measurement."""

    text: bytes
    labels: tuple[float, ...] = ()

    @cached_property
    def is_integer(self) -> list[bool]:
        """Of each number of a record, whether it is written as an integer."""
        return [mark == INTEGER for mark in _NUMBER.findall(self.text)]

    @property
    def width(self) -> int:
        """How many numbers a record has, those of its header and its notes included."""
        return len(self.is_integer)

    @cached_property
    def body(self) -> dict[str, Any]:
        """The record with each number's place instead of the number."""
        pieces = _NUMBER.split(self.text)
        pieces[1::2] = [b"%d" % place for place in range(len(pieces) // 2)]
        body: dict[str, Any] = json.loads(visible_json(b"".join(pieces).decode()))
        return body

    @cached_property
    def label_places(self) -> list[int]:
        """Which of the numbers are labels."""
        columns = [column for table in self.body["tables"] for column in table["columns"]]
        return [value for column in columns for value in (column.get("labels") or {}).values() if type(value) is int]

    @cached_property
    def header(self) -> dict[str, Any]:
        """What a record has besides its tables and notes: texts, and the places of numbers."""
        optional = {"arrays": self.body.get("arrays"), "error": self.body.get("error")}
        return {name: self.body[name] for name in HEADER} | optional

    @cached_property
    def columns(self) -> list[FormColumn]:
        return [column for table in self.tables for column in table]

    @cached_property
    def tables(self) -> list[list[FormColumn]]:
        return [[self._column(table, column) for column in table["columns"]] for table in self.body["tables"]]

    @cached_property
    def numbers(self) -> int:
        """How many values a record has, those included that are missing."""
        return sum(len(table["scopes"]) * len(table["columns"]) for table in self.body["tables"])

    @property
    def probe(self) -> str:
        return str(self.body["probe"])

    def place(self, name: str) -> int:
        """The place of a number of the header; `ABSENT` for an epoch that is null."""
        place = self.body[name]
        return ABSENT if place is None else int(place)

    @cached_property
    def _with_labels(self) -> dict[str, Form]:
        return {}

    def with_labels(self, numbers: Sequence[float]) -> Form:
        labels, known = tuple(numbers), self._with_labels
        key = repr(labels)  # 0.0 and -0.0 are equal
        if key not in known:
            if len(known) >= _MOST_SURE:
                known.clear()
            known[key] = replace(self, labels=labels)
        return known[key]

    def plain(self, numbers: Sequence[float]) -> list[Any]:
        """The numbers as they were written: integers and floats."""
        return [int(n) if integer else n for n, integer in zip(numbers, self.is_integer, strict=True)]

    def record(self, numbers: Sequence[float]) -> Record:
        """The record with these numbers."""
        plain = self.plain(numbers)
        header = {name: plain[value] if type(value) is int else value for name, value in self.header.items()}
        tables = [
            Table(entry["kind"], list(entry["scopes"]), [_with_values(column, plain) for column in columns])
            for entry, columns in zip(self.body["tables"], self.tables, strict=True)
        ]
        return Record(**header, tables=tables, notes=filled(self.body.get("notes", {}), plain))

    def _column(self, table: dict[str, Any], column: dict[str, Any]) -> FormColumn:
        values = dict(zip(self.label_places, self.labels, strict=True))
        labels = {
            label: (int(values[value]) if self.is_integer[value] else values[value]) if type(value) is int else value
            for label, value in (column.get("labels") or {}).items()
        }
        status = {int(place): reason for place, reason in column.get("status", {}).items()}
        places = np.array([ABSENT if place is None else place for place in column["values"]], np.int64)
        return FormColumn(table["kind"], table["scopes"], column["name"], labels, status, places)


def form_of(text: bytes, line: bytes, numbers: Sequence[float]) -> Form | None:
    """The form of a line with this text and these numbers; None if such lines are no records, or not sure to be read.

    The record that the form makes must be the one that the line is read as.
    """
    if text in _SURE:
        return _SURE[text]
    try:
        record, form = Record.from_json(line), Form(text)
        header = [form.body[name] for name in ("step", "attempt", "time", "cost")]
        sure = {int}.issuperset(map(type, header)) and not _not_json(text)
        full = form.with_labels([numbers[place] for place in form.label_places])
        if not sure or repr(full.record(numbers)) != repr(record):
            return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        return None
    if len(text) <= _SHORT:
        if len(_SURE) >= _MOST_SURE:
            _SURE.clear()
        _SURE[text] = form
    return form


def checked_form(text: bytes, labels: Sequence[float]) -> Form:
    """The form of a text that was kept; a ValueError, KeyError or TypeError if no line can have it."""
    form = _SURE.get(text) or _possible(text)
    if not {int, float}.issuperset(map(type, labels)) or len(labels) != len(form.label_places):
        raise ValueError("not the labels of a record")
    return form.with_labels(labels)


def _possible(text: bytes) -> Form:
    form = Form(text)
    Record.from_json(_NUMBER.sub(lambda mark: b"0" if mark[0] == INTEGER else b"0.5", text))
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)
    header = [form.body[name] for name in ("step", "attempt", "time", "cost")]
    if not {int}.issuperset(map(type, header)) or re.search(rb"\d", outside):
        raise ValueError("numbers of a record that are part of its text")
    return form


def _not_json(text: bytes) -> bool:
    """Whether the text has NaN or Infinity, which Python reads and JSON has not."""
    outside = re.sub(rb'"[^"]*"', b"", text)
    return b"N" in outside or b"I" in outside


def _with_values(column: FormColumn, numbers: list[Any]) -> Column:
    values = [None if place == ABSENT else numbers[place] for place in column.places.tolist()]
    return Column(column.name, values, dict(column.labels), dict(column.status))


def filled(value: Any, numbers: list[Any]) -> Any:
    """The notes with their numbers."""
    if type(value) is int:
        return numbers[value]
    if isinstance(value, dict):
        return {key: filled(item, numbers) for key, item in value.items()}
    return [filled(item, numbers) for item in value] if isinstance(value, list) else value
