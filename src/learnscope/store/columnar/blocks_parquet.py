"""Blocks of records as Parquet, without an object for every record, and what came back compared with them.

Of a block, one record is converted as any record is, and repeated; then the numbers are put in. The comparison goes the
other way: what differs between the records of a form must be the block's numbers, and the rest one record's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from learnscope.record import Record
from learnscope.store import parquet
from learnscope.store.backend import load
from learnscope.store.columnar.blocks import Floats, Ints, Loose, MemoryBlock, Segment
from learnscope.store.columnar.columns import Chosen, Columns, size
from learnscope.store.columnar.forms import ABSENT, filled

_PURPOSE = "compacting a run"
SAMPLED = 8
"""Records of a group whose lines are parsed once more, so that an error of the faster reader is noticed."""
_NUMBERS = ("step", "epoch", "attempt", "time", "cost")


@dataclass(frozen=True)
class Group:
    """Records that are written together: blocks and single records, all between two places of the run."""

    blocks: Sequence[MemoryBlock]
    loose: Sequence[Loose]

    @property
    def numbers(self) -> int:
        """How many numbers the records have, those included that are missing."""
        of_blocks = sum(block.form.numbers * len(block.order) for block in self.blocks)
        return of_blocks + sum(size(single.record) for single in self.loose)

    @property
    def order(self) -> Ints:
        """Of the blocks' records, then of the single ones: how many lines of the run stand before it."""
        singles = np.array([single.order for single in self.loose], np.int64)
        return np.concatenate([*(block.order for block in self.blocks), singles])


def groups(segment: Segment) -> Iterator[Group]:
    """A segment in the portions that Parquet keeps together."""
    blocks = [MemoryBlock(b.form, b.order, b.rows(range(b.form.width))) for b in segment.blocks]
    records = sum(len(block.order) for block in blocks) + len(segment.loose)
    numbers = Group(blocks, segment.loose).numbers
    at_once = min(parquet.RECORDS_A_GROUP, max(1, records * parquet.NUMBERS_A_GROUP // max(numbers, 1)))
    order = np.sort(Group(blocks, segment.loose).order)
    for start in range(0, records, at_once):
        first, last = order[start], order[min(start + at_once, records) - 1]
        parts = [_between(block, first, last) for block in blocks]
        loose = [single for single in segment.loose if first <= single.order <= last]
        yield Group([part for part in parts if len(part.order)], loose)


def _between(block: MemoryBlock, first: int, last: int) -> MemoryBlock:
    start, end = np.searchsorted(block.order, [first, last + 1])
    return MemoryBlock(block.form, block.order[start:end], block.numbers[:, start:end])


def table(group: Group) -> Any:
    """The records of a group in the order of writing."""
    pa = load("pyarrow", _PURPOSE)
    batches = [_batch(block) for block in group.blocks]
    batches += [parquet.batch([(single.record, single.line) for single in group.loose])] if group.loose else []
    return pa.Table.from_batches(batches).take(pa.array(np.argsort(group.order, kind="stable")))


def _batch(block: MemoryBlock) -> Any:
    pa = load("pyarrow", _PURPOSE)
    n, form = len(block.order), block.form
    one = parquet.batch([(form.record(block.numbers[:, 0].tolist()), b"")])
    many = one.take(pa.array(np.zeros(n, np.int64)))
    arrays = dict(zip(many.schema.names, many.columns, strict=True))
    for name in _NUMBERS:
        if (place := form.place(name)) != ABSENT:
            arrays[name] = pa.array(block.numbers[place]).cast(arrays[name].type)
    if form.body.get("notes"):
        arrays["notes"] = pa.array(_notes(block), pa.string())
    arrays["tables"] = _with_values(arrays["tables"], _values(block))
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=many.schema)


def _notes(block: MemoryBlock) -> list[str]:
    form = block.form
    return [json.dumps(filled(form.body["notes"], form.plain(row))) for row in block.numbers.T.tolist()]


def _values(block: MemoryBlock) -> Floats:
    """All values of all records, one record after the other; NaN for those that are null."""
    places = [place for column in block.form.columns for place in column.places.tolist()]
    return Chosen(block, None).rows(places).T.ravel()


def _with_values(tables: Any, values: Floats) -> Any:
    """The nested tables with these values in the place of theirs."""
    pa = load("pyarrow", _PURPOSE)
    columns = tables.values.field("columns")
    old = columns.values.field("values")
    new = pa.ListArray.from_arrays(old.offsets, pa.array(values, mask=np.isnan(values)))
    column = _exchanged(columns.values, "values", new)
    return pa.ListArray.from_arrays(
        tables.offsets, _exchanged(tables.values, "columns", pa.ListArray.from_arrays(columns.offsets, column))
    )


def _exchanged(struct: Any, name: str, array: Any) -> Any:
    pa = load("pyarrow", _PURPOSE)
    fields = {field.name: array if field.name == name else struct.field(field.name) for field in struct.type}
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def difference(group: Group, read: Any) -> Record | None:
    """A record of the group that did not come back as it was; None if all did. `read` is a table."""
    pa = load("pyarrow", _PURPOSE)
    if read.num_rows != len(group.order):
        return list(Columns([Segment(0, 0, 0, 0, group.blocks, group.loose)]).records())[-1]
    place = np.empty(len(group.order), np.int64)
    place[np.argsort(group.order, kind="stable")] = np.arange(len(place))
    batch, start = read.combine_chunks(), 0
    for block in group.blocks:
        rows = batch.take(pa.array(place[start : start + len(block.order)])).combine_chunks().to_batches()[0]
        wrong = _different(block, rows)
        if wrong is not None:
            return block.form.record(block.numbers[:, wrong].tolist())
        start += len(block.order)
    for single, at in zip(group.loose, place[start:].tolist(), strict=True):
        [back] = parquet.records_of(batch.take(pa.array([at])).combine_chunks().to_batches()[0])
        if single.record != back and repr(single.record) != repr(back):  # a NaN is not equal to itself
            return single.record
    return None


def sampled_difference(group: Group, read: Any, lines: Sequence[bytes], first: int) -> Record | None:
    """A record that is not what the JSON of its line says, among a few of the group; line `first` is the first one."""
    order = np.sort(group.order)
    if not len(order):
        return None
    places = np.unique(np.linspace(0, len(order) - 1, SAMPLED).astype(np.int64))
    # taken out, not sliced: a slice brings all values of the group along
    some = read.take(load("pyarrow", _PURPOSE).array(places)).combine_chunks().to_batches()[0]
    for place, back in zip(places.tolist(), parquet.records_of(some), strict=True):
        record = Record.from_json(lines[int(order[place]) - first])
        if record != back and repr(record) != repr(back):
            return record
    return None


def _different(block: MemoryBlock, rows: Any) -> int | None:
    """The place of a record of the block that is not what stands in its row."""
    form = block.form
    differs = np.zeros(len(block.order), bool)
    [first] = parquet.records_of(rows.take(load("pyarrow", _PURPOSE).array([0])))
    differs[0] = first != form.record(block.numbers[:, 0].tolist())
    for name in _NUMBERS:
        if (place := form.place(name)) != ABSENT:
            differs |= rows.column(name).to_numpy(zero_copy_only=False) != block.numbers[place]
    for name in (
        "probe",
        "phase",
        "source",
        "arrays",
        "error",
        "json",
        *(("epoch",) if form.body["epoch"] is None else ()),
    ):
        differs |= _varies(rows.column(name), len(differs))
    notes = rows.column("notes")
    differs |= (
        np.array(notes.to_pylist()) != np.array(_notes(block))
        if form.body.get("notes")
        else _varies(notes, len(differs))
    )
    tables = rows.column("tables")
    columns = tables.flatten().field("columns").flatten()
    for array in (tables, tables.flatten().field("scopes"), tables.flatten().field("columns"), columns.field("values")):
        differs |= _varies(array.value_lengths(), len(differs))
    if differs.any():
        return int(np.argmax(differs))
    texts = [tables.flatten().field("kind"), tables.flatten().field("scopes").flatten()]
    for array in (*texts, *(columns.field(name) for name in ("name", "integers", "labels", "status"))):
        differs |= _varies(array, len(differs))
    back, values = columns.field("values").flatten().to_numpy(zero_copy_only=False), _values(block)
    if len(back) != len(values):
        return 0
    same = (back == values) | (np.isnan(back) & np.isnan(values))
    differs |= ~same.reshape(len(differs), -1).all(axis=1)
    return int(np.argmax(differs)) if differs.any() else None


def _varies(array: Any, records: int) -> Any:
    """Which records have other texts than the first one; an array whose length is no multiple differs as a whole."""
    if len(array) % records:
        return np.ones(records, bool)
    codes = array.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False).reshape(records, -1)
    return (codes != codes[0]).any(axis=1)
