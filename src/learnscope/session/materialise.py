"""From what a probe returned to tables of plain numbers, with one wait for the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.record import Column, Measurement, Row, Table, nonfinite

_PLAIN = frozenset({float, int})
_KNOWN = frozenset({float, int, type(None)})


def as_measurement(returned: Any) -> Measurement | None:
    """Whatever a probe may return as a Measurement; None if it measured nothing."""
    if type(returned) is Table:
        return Measurement([returned])
    if returned is None or isinstance(returned, Measurement):
        return returned
    if isinstance(returned, Mapping):
        columns = [Column(str(name), [value]) for name, value in returned.items()]
        return Measurement([Table("model", ["model"], columns)])
    if isinstance(returned, Iterable | Row | Table) and not isinstance(returned, str | bytes):
        items = [returned] if isinstance(returned, Row | Table) else list(returned)
        if all(isinstance(item, Row | Table) for item in items):
            tables = [item for item in items if isinstance(item, Table)]
            return Measurement([*tables, *(_as_table(item) for item in items if isinstance(item, Row))])
    raise TypeError(
        f"measure returned {type(returned).__name__}; it may return {{name: number}}, rows, tables, "
        "a Measurement, or None"
    )


def _as_table(row: Row) -> Table:
    column = Column(row.name, [row.value], row.labels, {0: row.status} if row.status else {})
    return Table(row.kind, [row.scope], [column])


def waits_for_device(measurement: Measurement) -> bool:
    if measurement.packed:
        return not all(tensor.is_cpu for tensor in measurement.packed.values())
    columns = (column.values for table in measurement.tables for column in table.columns)
    unread = (values for values in columns if not _is_plain(values))
    parts = (part for values in unread for part in (values if isinstance(values, list | tuple) else [values]))
    return any(isinstance(part, Tensor) and part.device.type != "cpu" for part in parts)


def may_wait(measured: Measurement) -> bool:
    """Whether a measurement stays as it is until it is read: plain numbers or reasons, and small tensors of its
    own on a CPU."""
    if measured.arrays or measured.examples is not None or measured.finish is not None:
        return False
    plain = all(
        type(column.values) is list and _KNOWN.issuperset(map(type, column.values))
        for table in measured.tables
        for column in table.columns
    )
    return plain and all(tensor.is_cpu for tensor in measured.packed.values())


def is_alarming(measured: Measurement) -> bool:
    """Whether one of the plain numbers, or the first tensor of those that are packed, is not finite."""
    for tensor in measured.packed.values():
        if not math.isfinite(float(tensor.sum())):
            return True
        break
    try:
        return not all(_is_calm(column) for table in measured.tables for column in table.columns)
    except OverflowError:  # a whole number beyond floats
        return True


def _is_calm(column: Column) -> bool:
    """Whether all numbers of a plain column are finite, and none is missing because it was not."""
    if not column.status:
        return None not in column.values and math.isfinite(sum(column.values))
    known = (value for value in column.values if value is not None)
    return math.isfinite(sum(known)) and not any(map(nonfinite, column.status.values()))


def read_measured(measured: Measurement) -> list[Table]:
    """All tables of a measurement with plain numbers."""
    unpacked = [] if measured.unpack is None else measured.unpack(read_packed(measured.packed))
    tables = read_tables([*unpacked, *measured.tables])
    return tables if measured.finish is None else list(measured.finish(tables))


def read_tables(tables: Sequence[Table]) -> list[Table]:
    """The tables with plain numbers. All tensors of a device come over in one transfer."""
    finished = [[_is_finished(column, len(table.scopes)) for column in table.columns] for table in tables]
    if all(map(all, finished)):
        return list(tables)  # as most are
    parts: dict[torch.device, list[Tensor]] = {}
    for table in tables:
        for column in table.columns:
            for part in () if _is_plain(column.values) else _parts(column):
                if isinstance(part, Tensor):
                    parts.setdefault(part.device, []).append(part)
    numbers = {device: iter(_transfer(tensors)) for device, tensors in parts.items()}
    return [
        Table(t.kind, t.scopes, [c if done else _finish(c, t, numbers) for c, done in zip(t.columns, of, strict=True)])
        for t, of in zip(tables, finished, strict=True)
    ]


def _is_finished(column: Column, scopes: int) -> bool:
    """Whether a column is what `Column.finished` makes of it: plain finite numbers, and a reason for each other one."""
    values, status = column.values, column.status
    if type(values) is not list or len(values) != scopes or not _KNOWN.issuperset(map(type, values)):
        return False
    if status:
        if len(status) != values.count(None) or not all(0 <= at < scopes and values[at] is None for at in status):
            return False
        values = [value for value in values if value is not None]
    try:
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):  # one is missing without a reason, or beyond floats
        return False


def read_packed(packed: Mapping[str, Tensor]) -> dict[str, NDArray[np.float64]]:
    """Small tensors of one device as arrays in float64, in one transfer."""
    if all(tensor.is_cpu for tensor in packed.values()):
        return {name: _doubles(tensor) for name, tensor in packed.items()}
    tensors = [tensor.detach() for tensor in packed.values()]
    device = next(tensor.device for tensor in tensors if not tensor.is_cpu)
    shapes, parts = [tensor.shape for tensor in tensors], _transfer([tensor.to(device) for tensor in tensors])
    return {
        name: np.array(part, np.float64).reshape(shape) for name, shape, part in zip(packed, shapes, parts, strict=True)
    }


def _doubles(tensor: Tensor) -> NDArray[np.float64]:
    if tensor.dtype is torch.float64 and not tensor.requires_grad:  # as most are: fewer calls
        return tensor.numpy()
    return tensor.detach().double().numpy()


def _is_plain(values: Any) -> bool:
    """Whether a column is a list of plain numbers, as most are, and needs no reading."""
    return type(values) is list and _PLAIN.issuperset(map(type, values))


def read_arrays(arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays as NumPy's. bfloat16, which NumPy does not have, is widened to float32."""
    out: dict[str, NDArray[Any]] = {}
    for name, value in arrays.items():
        if isinstance(value, Tensor):
            value = value.detach().cpu()
            out[name] = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        else:
            out[name] = np.asarray(value)
    return out


def _parts(column: Column) -> Sequence[Any] | NDArray[Any]:
    parts = [column.values] if isinstance(column.values, Tensor) else column.values
    if isinstance(parts, str | bytes) or not isinstance(parts, Sequence | np.ndarray):
        raise TypeError(f"{column.name} is {type(parts).__name__}, not a list or tensor of numbers")
    for part in parts:
        if isinstance(part, Tensor) and part.is_complex():
            raise TypeError(f"{column.name} is {str(part.dtype).removeprefix('torch.')}, not a number")
    return parts


def _transfer(tensors: Sequence[Tensor]) -> list[list[float]]:
    if tensors[0].is_cpu:  # there is nothing to wait for, and joining them would only cost
        return [(t.long() if t.dtype is torch.bool else t).reshape(-1).tolist() for t in tensors]
    # float64 on the device would be refused by some accelerators; float32 values widen exactly afterwards
    wide = torch.float64 if tensors[0].device.type != "mps" else torch.float32
    flat = torch.cat([t.detach().reshape(-1).to(wide) for t in tensors]).tolist()
    out, start = [], 0
    for tensor in tensors:
        out.append(flat[start : start + tensor.numel()])
        start += tensor.numel()
    return out


def _finish(column: Column, table: Table, numbers: dict[torch.device, Any]) -> Column:
    plain = _is_plain(column.values)
    values: list[float | int | None] = column.values if plain else []
    for part in () if plain else _parts(column):
        if isinstance(part, Tensor):
            values.extend(next(numbers[part.device]))
        else:
            values.append(_number(column.name, part))
    return _sized(column, table, values).finished(values)


def _sized(column: Column, table: Table, values: Sequence[float | int | None] | None = None) -> Column:
    """The column, if it has a number for each scope of its table."""
    count = len(column.values if values is None else values)
    if count != len(table.scopes):
        raise ValueError(f"{column.name}: {count} numbers for {len(table.scopes)} scopes of {table.kind!r}")
    return column


def _number(name: str, value: Any) -> float | int | None:
    if value is None or (isinstance(value, float | int) and not isinstance(value, bool)):
        return value
    if isinstance(value, bool | np.bool_ | np.integer):
        return int(value)
    if isinstance(value, np.floating | np.ndarray) and np.size(value) == 1 and np.isrealobj(value):
        return float(value.item())
    raise TypeError(f"{name} is {type(value).__name__}, not a number; strings belong into scopes, labels or notes")
