"""What an audit measured, part by part, read from its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from learnscope.reading import audit_parts
from learnscope.reading.audit_numbers import Part, entries_of
from learnscope.reading.gather import class_of, one_pass
from learnscope.record import Record
from learnscope.store.reader import RunReader

PARTS: dict[str, type[Part]] = {
    "quality": audit_parts.Quality, "speed": audit_parts.Speed, "memory": audit_parts.Memory,
    "layers": audit_parts.Layers, "sensitivity": audit_parts.Sensitivity,
    "configurations": audit_parts.Configurations, "optimum": audit_parts.Optimum, "exported": audit_parts.Exported,
    "attacks": audit_parts.Attacks, "noise": audit_parts.Noise, "perturbations": audit_parts.Perturbations,
    "transfer": audit_parts.Transfer,
}  # fmt: skip
PROBES = {name: part.quantities.probe for name, part in PARTS.items()}
"""The probe that measures each part."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All parts of an audit. A part that was not measured is None, and `missing` has the reason."""

    quality: audit_parts.Quality | None = None
    speed: audit_parts.Speed | None = None
    memory: audit_parts.Memory | None = None
    layers: audit_parts.Layers | None = None
    sensitivity: audit_parts.Sensitivity | None = None
    configurations: audit_parts.Configurations | None = None
    optimum: audit_parts.Optimum | None = None
    exported: audit_parts.Exported | None = None
    attacks: audit_parts.Attacks | None = None
    noise: audit_parts.Noise | None = None
    perturbations: audit_parts.Perturbations | None = None
    transfer: audit_parts.Transfer | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any part was measured."""
        return len(self.missing) < len(PARTS)


def read_audit(reader: RunReader) -> Audit:
    """All that an audit measured."""
    run = one_pass(reader)
    return run.remember("audit", lambda: _read(run))


def _read(reader: RunReader) -> Audit:
    by_class: dict[str, list[Record]] = {}
    for record in reader.records():
        by_class.setdefault(class_of(record.probe), []).append(record)
    parts: dict[str, Any] = {}
    missing = {}
    for name, probe in PROBES.items():
        records = [r for r in by_class.get(probe, []) if not r.error and any(t.scopes for t in r.tables)]
        if not records:
            missing[name] = _why_missing(probe, by_class.get(probe, []))
            continue
        # configurations tried on the same data belong together; of all other parts the last record counts
        used = [r for r in records if _same_data(r, records[-1])] if name == "configurations" else records[-1:]
        parts[name] = PARTS[name](records[-1].probe, _notes(used), entries_of(used))
    return Audit(**parts, missing=missing)


def _notes(records: Iterable[Record]) -> dict[str, Any]:
    """Notes that are mappings, such as those by configuration, are merged; of others the last record's count."""
    notes: dict[str, Any] = {}
    for record in records:
        for key, value in record.notes.items():
            both = isinstance(value, Mapping) and isinstance(notes.get(key), Mapping)
            notes[key] = {**notes[key], **value} if both else value
    return notes


def _same_data(record: Record, other: Record) -> bool:
    return all(record.notes.get(key) == other.notes.get(key) for key in ("examples", "positions", "scheme"))


def _why_missing(probe: str, records: list[Record]) -> str:
    errors = [str(r.error).strip().splitlines()[0][:300] for r in records if r.error]
    if errors:
        return f"{probe} failed: {errors[-1]}"
    return f"{probe} recorded no number" if records else f"{probe} was not run"
