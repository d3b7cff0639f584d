"""Records of an audit as numbers, each with its interval or with the reason why it is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from learnscope.quantities import Quantities, Quantity
from learnscope.record import Record

_E = TypeVar("_E", bound="Entry")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its 95 % interval, if it has one; `why` is the reason for a value of None."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def integer(self) -> int | None:
        return None if self.value is None else int(self.value)


NONE = Number(None, why="not recorded")


class NumberOf:
    """An attribute that reads the number of a quantity."""

    def __init__(self, quantity: Quantity) -> None:
        self.name = quantity.name

    def __get__(self, numbers: Entry | Part, _: type | None = None) -> Number:
        return numbers[self.name]


class CountOf(NumberOf):
    """An attribute that reads a count."""

    def __get__(self, numbers: Entry | Part, _: type | None = None) -> int | None:  # type: ignore[override]
        return numbers[self.name].integer


class Label(Generic[_T]):
    """An attribute that reads a label, converted to the type of its default."""

    def __init__(self, name: str, default: _T) -> None:
        self.name, self.default = name, default

    def __get__(self, entry: Entry, _: type | None = None) -> _T:
        value = entry.labels.get(self.name)
        return self.default if value is None else type(self.default)(value)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Entry:
    """The numbers of one scope under one set of labels."""

    kind: str = ""
    scope: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, tuple[float | None, str | None]] = field(default_factory=dict)
    """Value and status by name."""

    def __getitem__(self, name: str) -> Number:
        if name not in self.cells:
            return NONE
        value = self.cells[name][0]
        if value is None:
            return Number(None, why=self.reasons[name])
        return Number(value, self.cells.get(f"{name}_low", (None,))[0], self.cells.get(f"{name}_high", (None,))[0])

    @property
    def name(self) -> str:
        return self.scope

    @property
    def values(self) -> dict[str, float | None]:
        return {name: value for name, (value, _) in self.cells.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """Why values are None, by name."""
        return {name: status or "not measured" for name, (value, status) in self.cells.items() if value is None}


@dataclass(frozen=True)
class Part:
    """What one probe recorded."""

    probe: str
    notes: Mapping[str, Any]
    entries: Sequence[Entry]
    quantities: ClassVar[type[Quantities]]

    def of(self, kind: str, view: type[_E]) -> list[_E]:
        """The entries of a kind, as instances of `view`."""
        return [view(kind, entry.scope, entry.labels, entry.cells) for entry in self.entries if entry.kind == kind]

    def __getitem__(self, name: str) -> Number:
        """A number of the model as a whole."""
        return next((entry[name] for entry in self.entries if entry.kind == "model" and name in entry.cells), NONE)

    @property
    def examples(self) -> int | None:
        return self.notes.get("examples")


def entries_of(records: Iterable[Record]) -> list[Entry]:
    """The numbers of all these records; a later record replaces what an earlier one has too."""
    cells: dict[Any, dict[str, tuple[float | None, str | None]]] = {}
    for record in records:
        for row in record.rows():
            key = (row.kind, row.scope, tuple(sorted(row.labels.items())))
            cells.setdefault(key, {})[row.name] = (row.value, row.status)
    return [Entry(kind, scope, dict(labels), each) for (kind, scope, labels), each in cells.items()]
