"""The tidy table of a run's columns: the same as `frame_of` makes record by record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from learnscope.store.columnar.blocks import Ints
from learnscope.store.columnar.columns import Chosen, Columns
from learnscope.store.columnar.forms import FormColumn
from learnscope.store.frame import FIXED_COLUMNS, empty_frame, finished, frame_of, inferred, label_column

if TYPE_CHECKING:
    import pandas as pd


class _Part:
    """The rows of a block: for each record, the values of its columns one after the other."""

    def __init__(self, chosen: Chosen, columns: Sequence[FormColumn]) -> None:
        self.chosen, self.columns = chosen, columns
        self.widths = [len(column.scopes) for column in columns]
        self.width = sum(self.widths)
        self.records = len(chosen.order)

    def values(self) -> NDArray[np.float64]:
        places = [place for column in self.columns for place in column.places.tolist()]
        return self.chosen.rows(places).T.ravel()

    def each_record(self, of_record: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(of_record, self.width)

    def each_column(self, codes: Sequence[int]) -> Ints:
        return np.tile(np.repeat(np.array(codes, np.int32), self.widths), self.records)

    def each_scope(self, codes: Sequence[int]) -> Ints:
        return np.tile(np.array(codes, np.int32), self.records)


def frame_from(
    columns: Columns,
    probe: str | None = None,
    name: str | None = None,
    kind: str | None = None,
    declared: Iterable[str] = (),
) -> pd.DataFrame:
    """The table of a run, or of a part of it. `declared`: see `frame_of`."""
    if columns.loose(probe):
        return frame_of(columns.records(probe), name, kind, declared)
    parts = []
    for chosen in columns.chosen(probe):
        wanted = [c for c in chosen.form.columns if kind in (None, c.kind) and name in (None, c.name)]
        parts += [_Part(chosen, wanted)] if wanted else []
    labels = _labels(parts, declared)
    parts = [part for part in parts if part.width]
    if not parts:
        return empty_frame(tuple(labels)).copy()
    sort = _sort(parts)
    every = [column for part in parts for column in part.columns]
    table: dict[str, Any] = dict.fromkeys(FIXED_COLUMNS)
    for key in ("step", "epoch", "attempt", "time", "cost"):
        table[key] = _header(parts, key, sort)
    for key in ("source", "phase", "probe"):
        table[key] = _constant([str(part.chosen.form.body[key]) for part in parts], parts, sort)
    codes = _Codes(parts, sort)
    table["kind"] = codes.of_columns([column.kind for column in every])
    table["name"] = codes.of_columns([column.name for column in every])
    table["scope"] = codes.of_scopes([scope for column in every for scope in column.scopes])
    table["status"] = codes.of_scopes([column.status.get(i) for column in every for i in range(len(column.scopes))])
    table["value"] = _sorted(np.concatenate([part.values() for part in parts]), sort)
    for label in labels:
        table[label_column(label)] = codes.of_columns([column.labels.get(label) for column in every])
    return finished(table)


class _Codes:
    """Texts and labels of all rows, from those of the columns of all parts."""

    def __init__(self, parts: Sequence[_Part], sort: Ints | None) -> None:
        self._parts, self._sort = parts, sort

    def of_columns(self, values: Sequence[Any]) -> Any:
        return self._spread(values, [len(part.columns) for part in self._parts], _Part.each_column)

    def of_scopes(self, values: Sequence[Any]) -> Any:
        return self._spread(values, [part.width for part in self._parts], _Part.each_scope)

    def _spread(self, values: Sequence[Any], counts: Sequence[int], rows: Any) -> Any:
        distinct, codes = _coded(values)
        ends = np.cumsum([0, *counts])
        pieces = [rows(part, codes[ends[i] : ends[i + 1]]) for i, part in enumerate(self._parts)]
        return inferred(distinct).take(_sorted(np.concatenate(pieces), self._sort))


def _coded(values: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The distinct values, 1 and True and 1.0 apart, and of each value which it is."""
    code_of: dict[tuple[type, Any], int] = {}
    codes = [code_of.setdefault((type(value), value), len(code_of)) for value in values]
    return [value for _, value in code_of], codes


def _labels(parts: Sequence[_Part], declared: Iterable[str]) -> list[str]:
    """Declared ones first, then by their first appearance in the order of writing."""
    first: dict[str, tuple[int, int]] = {}
    for part in parts:
        at = int(part.chosen.order[0])
        for place, label in enumerate(label for column in part.columns for label in column.labels):
            first[label] = min(first.get(label, (at, place)), (at, place))
    return list(dict.fromkeys([*declared, *sorted(first, key=lambda label: first[label])]))


def _sort(parts: Sequence[_Part]) -> Ints | None:
    """How the rows of all parts come into the order of writing; None if they are."""
    orders = [part.chosen.order for part in parts]
    if all(a[-1] < b[0] for a, b in pairwise(orders)):
        return None
    sort: Ints = np.argsort(
        np.concatenate([p.each_record(o) for p, o in zip(parts, orders, strict=True)]), kind="stable"
    )
    return sort


def _sorted(rows: NDArray[Any], sort: Ints | None) -> NDArray[Any]:
    return rows if sort is None else rows[sort]


def _header(parts: Sequence[_Part], key: str, sort: Ints | None) -> NDArray[Any]:
    """Numbers with the dtype that pandas gives them: with nulls, integers become floats, or objects if all are null."""
    forms = [part.chosen.form for part in parts]
    absent = [form.body[key] is None for form in forms]
    if all(absent):
        return np.full(sum(part.records * part.width for part in parts), None, object)
    numbers = np.concatenate([part.each_record(part.chosen.header(key)) for part in parts])
    integer = not any(absent) and all(form.is_integer[form.place(key)] for form in forms)
    return _sorted(numbers.astype(np.int64) if integer else numbers, sort)


def _constant(texts: Sequence[str], parts: Sequence[_Part], sort: Ints | None) -> Any:
    distinct, codes = _coded(texts)
    rows = np.repeat(np.array(codes, np.int32), [part.records * part.width for part in parts])
    return inferred(distinct).take(_sorted(rows, sort))
