"""Everything that a run recorded, by probe, kind, name and labels: what the panels of a page are made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.quantities import Quantity
from learnscope.reading.gather import layers, ordered
from learnscope.reading.other_numbers import declaration
from learnscope.record import Record, nonfinite
from learnscope.store.columnar.columns import Chosen
from learnscope.store.columnar.forms import FormColumn
from learnscope.store.reader import RunReader

Labels = tuple[tuple[str, Any], ...]
BROKEN = np.inf
"""In a matrix: measured, and not finite. What was not measured is NaN."""


@dataclass(frozen=True)
class Matrix:
    """One quantity over steps (down) and scopes (across)."""

    steps: NDArray[np.int64]
    scopes: list[str]
    values: NDArray[np.float64]

    def of(self, scope: str) -> NDArray[np.float64]:
        column: NDArray[np.float64] = self.values[:, self.scopes.index(scope)]
        return column

    @property
    def finite(self) -> NDArray[np.float64]:
        finite: NDArray[np.float64] = self.values[np.isfinite(self.values)]
        return finite

    @cached_property
    def constant(self) -> float | None:
        """The value that all cells have; None if they differ, or if one is missing or not finite."""
        if not self.values.size or not np.isfinite(self.values).all() or self.values.min() != self.values.max():
            return None
        return float(self.values.flat[0])


@dataclass
class Recorded:
    """One name of one probe, of one kind, with one set of labels."""

    probe: str
    kind: str
    name: str
    labels: Labels
    quantity: Quantity | None
    parts: list[tuple[Chosen, FormColumn]] = field(default_factory=list)
    loose: list[tuple[int, int, str, float]] = field(default_factory=list)
    """Order, step, scope and value of records that were read one by one."""
    order: Sequence[str] = ()

    @property
    def condition(self) -> str:
        """The labels in words."""
        return ", ".join(f"{label} {value}" for label, value in self.labels)

    @property
    def scopes(self) -> list[str]:
        names = dict.fromkeys(scope for _, column in self.parts for scope in column.scopes)
        names |= dict.fromkeys(scope for _, _, scope, _ in self.loose)
        return ordered(list(names), self.order)

    @property
    def n_steps(self) -> int:
        """How often it was measured, before doubles are left out."""
        return sum(len(chosen.order) for chosen, _ in self.parts) + len({step for _, step, _, _ in self.loose})

    def matrix(self) -> Matrix:
        """The numbers; of several for one step and scope, the one that was written last."""
        scopes = self.scopes
        place = {scope: at for at, scope in enumerate(scopes)}
        chunks = [_chunk(chosen, column, place) for chosen, column in self.parts]
        chunks += [_loose(self.loose, place)] if self.loose else []
        if not chunks:
            return Matrix(np.zeros(0, np.int64), scopes, np.zeros((0, len(scopes))))
        steps = np.concatenate([step for _, step, _, _ in chunks])
        if not (np.diff(steps) > 0).all():  # the usual case needs no sorting
            steps = np.unique(steps)
        values = np.full((len(steps), len(scopes)), np.nan)
        written = (
            np.full(values.shape, -1, np.int64) if sum(len(step) for _, step, _, _ in chunks) > len(steps) else None
        )
        for order, step, across, numbers in chunks:
            down = np.searchsorted(steps, step)
            if written is None:
                values[down[:, None], across] = numbers
                continue
            for row in np.argsort(order, kind="stable"):
                later = written[down[row], across[row]] < order[row]
                values[down[row], across[row][later]] = numbers[row][later]
                written[down[row], across[row][later]] = order[row]
        return Matrix(steps, scopes, values)


def catalogue(reader: RunReader) -> list[Recorded]:
    """Every name in the order in which probes first fired."""
    columns, order = reader.columns(), layers(reader)
    found: dict[tuple[str, str, str, Labels], Recorded] = {}

    def entry(probe: str, kind: str, name: str, labels: Mapping[str, Any]) -> Recorded:
        key = (probe, kind, name, tuple(sorted((k, v) for k, v in labels.items() if v is not None)))
        if key not in found:
            found[key] = Recorded(*key, declaration(reader, probe, name), order=order)
        return found[key]

    for probe in columns.heads.probes:
        for chosen in columns.chosen(probe):
            for column in chosen.form.columns:
                if column.scopes:
                    entry(probe, column.kind, column.name, column.labels).parts.append((chosen, column))
        for at, record in columns.loose(probe):
            for kind, name, labels, cell in _cells(at, record):
                entry(probe, kind, name, labels).loose.append(cell)
    return list(found.values())


def _chunk(
    chosen: Chosen, column: FormColumn, place: Mapping[str, int]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Order, step, places of the scopes and values of the records of a block."""
    values = chosen.rows(column.places.tolist()).T.copy()
    for at, reason in column.status.items():
        if nonfinite(reason) is not None:
            values[:, at] = BROKEN
    across = np.array([place[scope] for scope in column.scopes], np.int64)
    order, step = chosen.order, chosen.header("step").astype(np.int64)
    return order, step, np.broadcast_to(across, values.shape), values


def _loose(
    cells: Sequence[tuple[int, int, str, float]], place: Mapping[str, int]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    order, step = (np.array([cell[i] for cell in cells], np.int64) for i in (0, 1))
    across = np.array([[place[cell[2]]] for cell in cells], np.int64)
    return order, step, across, np.array([[cell[3]] for cell in cells])


def _cells(at: int, record: Record) -> Iterator[tuple[str, str, Mapping[str, Any], tuple[int, int, str, float]]]:
    for row in record.rows():
        missing = BROKEN if nonfinite(row.status) is not None else np.nan
        value = missing if row.value is None else float(row.value)
        yield row.kind, row.name, row.labels, (at, record.step, row.scope, value)
