"""Nested batches of records as one flat table, column by column; used by `compacted_frame`. Needs pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from learnscope.characters import visible_json
from learnscope.store.frame import FIXED_COLUMNS, empty_frame, finished, inferred, label_column

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_EXACT = 2.0**53


class Irregular(Exception):
    """An unusual value, which only reading record by record is sure to read correctly."""


class Nest:
    """The tables and columns of a batch as flat arrays, each entry with the index of its record or table."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        tables, self.tables_of = _unnest(batch.column("tables"))
        self.kinds, scopes, columns = (_child(tables, name) for name in ("kind", "scopes", "columns"))
        self.scopes, self.table_of_scope = _unnest(scopes)
        columns_flat, self.table_of = _unnest(columns)
        self.names, values, self.labels, self.status = (
            _child(columns_flat, name) for name in ("name", "values", "labels", "status")
        )
        self.values, column_of_value = _unnest(values)
        self.scopes_each = np.bincount(self.table_of_scope, minlength=len(self.kinds))
        self.values_each = np.bincount(column_of_value, minlength=len(self.names))


class _Texts:
    """Texts as integer codes, the same over all batches; −1 for null, −2 for a value that is no text."""

    def __init__(self) -> None:
        self.code_of: dict[str, int] = {}

    def codes(self, array: pa.Array) -> Ints:
        encoded = array.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        codes_here = np.array([*map(self.code, texts), -1], np.int64)
        codes: Ints = codes_here[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        return codes

    def code(self, text: Any) -> int:
        return self.code_of.setdefault(text, len(self.code_of)) if isinstance(text, str) else -2

    def spread(self, codes: Ints) -> Any:
        if (codes < 0).any():
            raise Irregular("a value that should be a text and is not")
        return pd.Series(list(self.code_of)).array.take(codes)


class Flat:
    """Collects the numbers of batches; `frame` makes the table."""

    def __init__(self, starts: Mapping[int, int], probe: str | None, name: str | None, kind: str | None) -> None:
        self._starts = starts
        self._probe, self._name, self._kind = probe, name, kind
        self._texts = {
            key: _Texts() for key in ("source", "phase", "probe", "kind", "scope", "name", "labels", "status")
        }
        self._header: dict[str, list[Any]] = {key: [] for key in FIXED_COLUMNS}
        self._parts: dict[str, list[Any]] = {key: [] for key in ("record", "count", "labels", "status")}
        self._records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if "json" in batch.schema.names and batch.column("json").null_count < batch.num_rows:
            raise Irregular("a record that the columns of Parquet cannot hold")
        kept = np.ones(batch.num_rows, bool)
        for key in ("probe", "phase", "source"):
            self._header[key].append(self._texts[key].codes(batch.column(key)))
        for key in ("step", "attempt", "epoch", "time", "cost"):
            self._header[key].append(batch.column(key))
        step, attempt = (_integers(batch.column(key)) for key in ("step", "attempt"))
        for later, start in self._starts.items():
            kept &= ~((attempt < later) & (step > start))
        if self._probe is not None:
            kept &= self._header["probe"][-1] == self._texts["probe"].code(self._probe)
        self._select(Nest(batch), kept)
        self._records += batch.num_rows

    def _select(self, nest: Nest, kept: Bools) -> None:
        kinds = self._texts["kind"].codes(nest.kinds)
        names = self._texts["name"].codes(nest.names)
        selected = kept[nest.tables_of[nest.table_of]]
        if self._kind is not None:
            selected &= kinds[nest.table_of] == self._texts["kind"].code(self._kind)
        if self._name is not None:
            selected &= names == self._texts["name"].code(self._name)
        column = np.flatnonzero(selected)
        table = nest.table_of[column]
        count = nest.values_each[column]
        if (count != nest.scopes_each[table]).any():
            raise Irregular("a column that is not as long as its table")
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        value = np.repeat((np.cumsum(nest.values_each) - nest.values_each)[column], count) + within
        scope = np.repeat((np.cumsum(nest.scopes_each) - nest.scopes_each)[table], count) + within
        self._header["value"].append(nest.values.take(pa.array(value)).cast(pa.float64()))
        self._header["scope"].append(self._texts["scope"].codes(nest.scopes)[scope])
        self._header["kind"].append(kinds[table])
        self._header["name"].append(names[column])
        self._parts["record"].append(nest.tables_of[table] + self._records)
        self._parts["count"].append(count)
        for key, array in (("labels", nest.labels), ("status", nest.status)):
            self._parts[key].append(self._texts[key].codes(array)[column])

    def frame(self, declared: Iterable[str] = ()) -> pd.DataFrame:
        """The table, as `frame_of` makes it."""
        parts = {key: np.concatenate(arrays or [np.zeros(0, np.int64)]) for key, arrays in self._parts.items()}
        count = parts["count"]
        label_texts = list(self._texts["labels"].code_of)
        bodies = {int(code): _body(label_texts[code]) for code in pd.unique(parts["labels"]) if code >= 0}
        recorded = (label for body in bodies.values() for label in body)  # by first appearance
        labels = list(dict.fromkeys([*declared, *recorded]))
        if not count.sum():
            return empty_frame(tuple(labels)).copy()
        with_rows = np.unique(parts["record"][count > 0])
        row = np.repeat(np.searchsorted(with_rows, parts["record"]), count)
        columns: dict[str, Any] = dict.fromkeys(FIXED_COLUMNS)
        for key in ("source", "phase", "probe"):
            columns[key] = self._texts[key].spread(np.concatenate(self._header[key])[with_rows][row])
        for key in ("step", "attempt", "epoch", "time", "cost"):
            columns[key] = _numbers(self._header[key], with_rows)[row]
        for key in ("kind", "name"):
            columns[key] = self._texts[key].spread(np.repeat(np.concatenate(self._header[key]), count))
        columns["scope"] = self._texts["scope"].spread(np.concatenate(self._header["scope"]))
        columns["value"] = pa.chunked_array(self._header["value"]).to_numpy()
        columns["status"] = self._reasons(parts["status"], count)
        code, place = np.unique(np.repeat(parts["labels"], count), return_inverse=True)
        for label in labels:
            columns[label_column(label)] = inferred([bodies.get(int(c), {}).get(label) for c in code]).take(place)
        return finished(columns)

    def _reasons(self, codes: Ints, count: Ints) -> Any:
        """The status of every row: None, or the reason that its column gives for its position."""
        reason_of = np.full(count.sum(), -1, np.int64)
        reasons = _Texts()
        first = np.cumsum(count) - count
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], np.arange(len(self._texts["status"].code_of) + 1))
        for text, code in self._texts["status"].code_of.items():
            columns = order[ends[code] : ends[code + 1]]
            for position, reason in _body(text).items() if len(columns) else ():
                at = int(position) if position.isdecimal() else -1
                if not isinstance(reason, str) or at < 0 or (count[columns] <= at).any():
                    raise Irregular("a status that is not the reason of one of the values")
                reason_of[first[columns] + at] = reasons.code(reason)
        used, place = np.unique(reason_of, return_inverse=True)
        texts: list[str | None] = [*reasons.code_of, None]
        return inferred([texts[code] for code in used]).take(place)


def _unnest(array: pa.Array) -> tuple[pa.Array, Ints]:
    """The elements of the lists, and for each the index of its list."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return array.flatten(), np.repeat(np.arange(len(array)), lengths)


def _child(array: pa.StructArray, name: str) -> pa.Array:
    return array.flatten()[array.type.get_field_index(name)]


def _body(text: str) -> dict[str, Any]:
    def number(written: str) -> float:
        if abs(float(written)) >= _EXACT:
            raise Irregular("a label too large for a float to hold it exactly")
        return float(written)

    body = json.loads(visible_json(text), parse_float=number)
    if not isinstance(body, dict):
        raise Irregular("labels or a status that are not an object")
    return body


def _integers(array: pa.Array) -> Ints:
    if not pa.types.is_int64(array.type) or array.null_count:
        raise Irregular("a step or an attempt that is no integer")
    integers: Ints = array.to_numpy(zero_copy_only=False)
    return integers


def _numbers(pieces: Sequence[pa.Array], chosen: Ints) -> NDArray[Any]:
    """One array of numbers with the dtype that pandas gives them: with nulls, integers become floats or objects."""
    joined = pa.chunked_array(pieces).take(pa.array(chosen))
    if joined.null_count == len(joined):
        return np.full(len(joined), None, object)
    numbers: NDArray[Any] = joined.to_numpy()
    if numbers.dtype.kind == "f" and (np.abs(numbers) >= _EXACT).any():
        raise Irregular("an integer too large for a float to hold it exactly")
    return numbers
