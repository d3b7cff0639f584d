"""The records of an audit as plain tables: for each probe that ran, its numbers by where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from learnscope.quantities import Quantity, bits, cost, outputs, robustness
from learnscope.reading.gather import class_of
from learnscope.record import Record
from learnscope.store.reader import RunReader

PROBES = {
    "quality": outputs.Performance.probe,
    "speed": cost.InferenceSpeed.probe,
    "memory": cost.MemoryUse.probe,
    "layers": cost.LayerTimes.probe,
    "sensitivity": bits.BitSensitivity.probe,
    "configurations": bits.BitWidths.probe,
    "optimum": bits.BitOptimum.probe,
    "exported": cost.ExportedSpeed.probe,
    "attacks": robustness.Attacks.probe,
    "noise": robustness.NoiseRobustness.probe,
    "perturbations": robustness.InputPerturbation.probe,
    "transfer": robustness.BitRobustness.probe,
}
"""The parts of an audit and the probes that measure them."""
_E = TypeVar("_E", bound="Entry")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Number:
    """A number with its 95 % interval where it has one; a value that is None has its reason in `why`."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def whole(self) -> int | None:
        return None if self.value is None else int(self.value)


NONE = Number(None, why="not recorded")


class Of:
    """An attribute that reads the number of a quantity."""

    def __init__(self, quantity: Quantity) -> None:
        self.name = quantity.name

    def __get__(self, numbers: Entry | Part, _: type | None = None) -> Number:
        return numbers[self.name]


class Whole:
    """An attribute that reads a count."""

    def __init__(self, quantity: Quantity) -> None:
        self.name = quantity.name

    def __get__(self, numbers: Entry | Part, _: type | None = None) -> int | None:
        return numbers[self.name].whole


class Label(Generic[_T]):
    """An attribute that reads a label; the default stands where there is none, and says of what type it is."""

    def __init__(self, name: str, default: _T) -> None:
        self.name, self.default = name, default

    def __get__(self, entry: Entry, _: type | None = None) -> _T:
        given = entry.labels.get(self.name)
        return self.default if given is None else type(self.default)(given)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Entry:
    """The numbers of one scope under one set of labels, as they were recorded."""

    kind: str = ""
    scope: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, tuple[float | None, str | None]] = field(default_factory=dict)
    """Values by name, each None with its reason where there is none."""

    def __getitem__(self, name: str) -> Number:
        """A number and its interval."""
        if name not in self.cells:
            return NONE
        value, why = self.cells[name]
        if value is None:
            return Number(None, why=why or "not measured")
        return Number(value, self.cells.get(f"{name}_low", (None,))[0], self.cells.get(f"{name}_high", (None,))[0])

    @property
    def name(self) -> str:
        return self.scope


@dataclass(frozen=True)
class Part:
    """What one probe recorded: its label, the notes of its last record, and its numbers."""

    probe: str
    notes: Mapping[str, Any]
    entries: Sequence[Entry]

    def of(self, kind: str, view: type[_E]) -> list[_E]:
        """The entries of a kind, seen as one of the classes here."""
        return [view(kind, one.scope, one.labels, one.cells) for one in self.entries if one.kind == kind]

    def __getitem__(self, name: str) -> Number:
        """A number of the model as a whole."""
        return next((one[name] for one in self.entries if one.kind == "model" and name in one.cells), NONE)

    @property
    def examples(self) -> int | None:
        known = self.notes.get("examples")
        return int(known) if isinstance(known, int | float) and not isinstance(known, bool) else None


def read_parts(reader: RunReader, views: Mapping[str, type[Part]]) -> tuple[dict[str, Part], dict[str, str]]:
    """Every part that ran, and the reasons for those that did not."""
    by_class: dict[str, list[Record]] = {}
    for record in reader.records():
        by_class.setdefault(class_of(record.probe), []).append(record)
    parts, missing = {}, {}
    for part, probe in PROBES.items():
        records = [r for r in by_class.get(probe, []) if not r.error and any(t.scopes for t in r.tables)]
        if records:
            # other configurations of the same data belong together; anything else is as last measured
            same = [r for r in records if _same_data(r, records[-1])] if part == "configurations" else records[-1:]
            parts[part] = views[part](records[-1].probe, _notes(same), _entries(same))
        else:
            missing[part] = _why_missing(probe, by_class.get(probe, []))
    return parts, missing


def _entries(records: Iterable[Record]) -> list[Entry]:
    """The numbers of all these records; what is recorded twice is taken from the later one."""
    cells: dict[Any, dict[str, tuple[float | None, str | None]]] = {}
    for record in records:
        for row in record.rows():
            place = (row.kind, row.scope, tuple(sorted(row.labels.items())))
            cells.setdefault(place, {})[row.name] = (row.value, row.status)
    return [Entry(kind, scope, dict(labels), each) for (kind, scope, labels), each in cells.items()]


def _notes(records: Iterable[Record]) -> dict[str, Any]:
    """Notes by name, such as those of every configuration, are put together; others are the later record's."""
    out: dict[str, Any] = {}
    for record in records:
        for key, value in record.notes.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = {**out[key], **value} if both else value
    return out


def _same_data(one: Record, other: Record) -> bool:
    return all(one.notes.get(key) == other.notes.get(key) for key in ("examples", "positions", "scheme"))


def _why_missing(probe: str, records: list[Record]) -> str:
    errors = [str(r.error).strip().splitlines()[0][:300] for r in records if r.error]
    if errors:
        return f"{probe} failed: {errors[-1]}"
    return f"{probe} recorded no number" if records else f"{probe} was not run"
