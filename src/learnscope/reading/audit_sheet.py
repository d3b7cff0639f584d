"""The records of an audit by where their numbers stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from learnscope.reading.audit_tables import NONE, PROBES, Number
from learnscope.reading.gather import class_of
from learnscope.record import Record
from learnscope.store.reader import RunReader

Place = tuple[str, str, tuple[tuple[str, Any], ...]]
"""Kind, scope and labels."""


@dataclass(frozen=True)
class Sheet:
    """The numbers of a record by where they stand, with `None` and a reason where there is none."""

    probe: str
    notes: Mapping[str, Any]
    cells: Mapping[Place, Mapping[str, tuple[float | None, str | None]]]

    def places(self, kind: str) -> list[Place]:
        return [place for place in self.cells if place[0] == kind]

    def at(self, place: Place, name: str) -> Number:
        """A number and its interval."""
        found = self.cells.get(place, {})
        if name not in found:
            return NONE
        value, why = found[name]
        if value is None:
            return Number(None, why=why or "not measured")
        return Number(value, found.get(f"{name}_low", (None,))[0], found.get(f"{name}_high", (None,))[0])

    def model(self, name: str, **labels: Any) -> Number:
        return self.at(("model", "model", tuple(sorted(labels.items()))), name)

    @property
    def part(self) -> dict[str, Any]:
        return {"probe": self.probe, "notes": self.notes}


def sheet_of(records: Iterable[Record]) -> Sheet:
    """The numbers of all these records; what is recorded twice is taken from the later one."""
    cells: dict[Place, dict[str, tuple[float | None, str | None]]] = {}
    probe = ""
    notes: dict[str, Any] = {}
    for record in records:
        probe, notes = record.probe, _joined(notes, record.notes)
        for row in record.rows():
            place = (row.kind, row.scope, tuple(sorted(row.labels.items())))
            cells.setdefault(place, {})[row.name] = (row.value, row.status)
    return Sheet(probe, notes, cells)


def _joined(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Notes by name, such as those of every configuration, are put together; others are the later record's."""
    out = dict(earlier)
    for key, value in later.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = {**out[key], **value} if both else value
    return out


def sheets(reader: RunReader) -> tuple[dict[str, Sheet], dict[str, str]]:
    """The numbers of every part that ran, and the reasons for those that did not."""
    by_class: dict[str, list[Record]] = {}
    for record in reader.records():
        by_class.setdefault(class_of(record.probe), []).append(record)
    found, missing = {}, {}
    for part, probe in PROBES.items():
        records = [r for r in by_class.get(probe, []) if not r.error and any(t.scopes for t in r.tables)]
        if records:
            # other configurations of the same data belong together; anything else is as last measured
            same = [r for r in records if _same_data(r, records[-1])] if part == "configurations" else records[-1:]
            found[part] = sheet_of(same)
        else:
            missing[part] = _why_missing(probe, by_class.get(probe, []))
    return found, missing


def _same_data(one: Record, other: Record) -> bool:
    return all(one.notes.get(key) == other.notes.get(key) for key in ("examples", "positions", "scheme"))


def _why_missing(probe: str, records: list[Record]) -> str:
    errors = [str(r.error).strip().splitlines()[0][:300] for r in records if r.error]
    if errors:
        return f"{probe} failed: {errors[-1]}"
    return f"{probe} recorded no number" if records else f"{probe} was not run"
