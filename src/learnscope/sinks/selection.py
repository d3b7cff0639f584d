"""Which numbers of a record a tracker gets: all of the model, and of many layers a summary and the largest few.

A model of 48 layers records thousands of numbers each time; a tracker draws a chart for each. What is left out is in
the run folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from learnscope.quantities import Quantity, declared
from learnscope.record import Column, Label, Record, Table

KINDS = ("model", "group", "named", "layer", "split")
FEW = 4
"""Layers (or groups, …) that are written one by one."""
TOP = 3
"""Of more, so many of the largest; those that take the lead later come on top, at most so many again."""
MOST = 200
"""Keys, after which no layer gets one of its own any more. Numbers of the model always do."""
Summary = Literal["min", "median", "max"]
_SUMMARIES: Mapping[Summary, Any] = {"min": min, "median": median, "max": max}


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a record, or a summary of one column over its scopes."""

    probe: str
    name: str
    kind: str
    scope: str
    labels: Mapping[str, Label]
    value: float | None
    """None for a summary or a number of which nothing was measured."""
    summary: Summary | None = None
    status: str | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        labels = tuple(sorted((name, str(value)) for name, value in self.labels.items()))
        return (self.probe, self.name, self.kind, self.scope, labels, self.summary)


@dataclass
class Selection:
    """Chooses the numbers of every record in the same way, so that a chart has no gaps.

    It remembers which layers it has chosen, since these are to stay the same.
    """

    kinds: Iterable[str] = KINDS
    """Which tables are written. Those of single tensors are many and left out by default."""
    everything: bool = False
    """Write every number of these tables."""
    _leaders: dict[tuple[Any, ...], list[str]] = field(default_factory=dict)
    _keys: set[tuple[Any, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.kinds = frozenset([self.kinds] if isinstance(self.kinds, str) else self.kinds)

    def numbers(self, record: Record) -> Iterator[Number]:
        """Missing ones too, whose value is None: some tools show the latest number and have to forget it."""
        for table in record.tables:
            if table.kind in self.kinds:
                for column in table.columns:
                    yield from self._of(record.probe, table, column)

    def _of(self, probe: str, table: Table, column: Column) -> Iterator[Number]:
        if self.everything or table.kind == "model" or len(table.scopes) <= FEW:
            scopes = list(range(len(table.scopes)))
        else:
            quantity = quantity_of(probe, column.name)
            minor = quantity is not None and quantity.drawn == "not"  # for findings more than for looking at
            if quantity is not None and minor and "model" in quantity.kinds:
                return
            yield from summaries(probe, table, column)
            if minor:
                return
            scopes = [place for place, scope in enumerate(table.scopes) if scope in self._chosen(probe, table, column)]
        for place in scopes:
            number = number_at(probe, table, column, place)
            if self._has_room(number):
                yield number

    def _chosen(self, probe: str, table: Table, column: Column) -> list[str]:
        """The scopes that are written one by one: the largest at first, and those that have taken the lead since."""
        chosen = self._leaders.setdefault(
            (probe, column.name, table.kind, *sorted(map(str, column.labels.items()))), []
        )
        if len(chosen) < 2 * TOP:
            ranked = sorted(measured(column), key=lambda place: -column.values[place])
            for place in ranked[: 1 if chosen else TOP]:
                if table.scopes[place] not in chosen:
                    chosen.append(table.scopes[place])
        return chosen

    def _has_room(self, number: Number) -> bool:
        if self.everything or number.identity in self._keys:
            return True
        if number.kind != "model" and len(self._keys) >= MOST:
            return False
        self._keys.add(number.identity)
        return True


def number_at(probe: str, table: Table, column: Column, place: int) -> Number:
    value = column.values[place]
    finite = value is not None and math.isfinite(value)
    return Number(
        probe, column.name, table.kind, table.scopes[place], column.labels, float(value) if finite else None,
        status=column.status.get(place) or (None if value is None or finite else str(float(value))),
    )  # fmt: skip


def measured(column: Column) -> list[int]:
    """The places of a column that hold a finite number."""
    return [place for place, value in enumerate(column.values) if value is not None and math.isfinite(value)]


def summaries(probe: str, table: Table, column: Column) -> Iterator[Number]:
    """The least, the median and the largest number of a column, of those that were measured."""
    values = [float(column.values[place]) for place in measured(column)]
    for summary, of in _SUMMARIES.items():
        value = of(values) if values else None
        yield Number(probe, column.name, table.kind, "", column.labels, value, summary)


def probe_class(label: str) -> tuple[str, str]:
    """The class of a probe and the number of this one among several of it.

    >>> probe_class("GradientFlow"), probe_class("GradientFlow_2"), probe_class("My_2")
    (('GradientFlow', ''), ('GradientFlow', '2'), ('My_2', ''))
    """
    name, _, number = label.rpartition("_")
    return (name, number) if number.isdecimal() and name in declared() else (label, "")


def quantity_of(label: str, name: str) -> Quantity | None:
    """What a name means that a session recorded under a probe's label."""
    quantities = declared().get(probe_class(label)[0])
    return quantities.of(name) if quantities else None
