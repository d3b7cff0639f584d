"""What an audit measured, part by part, read from its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

from learnscope.reading import audit_parts
from learnscope.reading.audit_numbers import Part, entries_of
from learnscope.reading.cost import audit_cost
from learnscope.reading.gather import class_of, labels, one_pass
from learnscope.record import Record
from learnscope.store.reader import RunReader


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All parts of an audit. A part that was not measured is None, and `missing` has the reason."""

    quality: audit_parts.Quality | None = None
    speed: audit_cost.Speed | None = None
    memory: audit_cost.Memory | None = None
    layers: audit_cost.Layers | None = None
    sensitivity: audit_parts.Sensitivity | None = None
    configurations: audit_parts.Configurations | None = None
    optimum: audit_parts.Optimum | None = None
    exported: audit_cost.Exported | None = None
    attacks: audit_parts.Attacks | None = None
    noise: audit_parts.Noise | None = None
    perturbations: audit_parts.Perturbations | None = None
    transfer: audit_parts.Transfer | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any part was measured."""
        return len(self.missing) < len(PARTS)


PARTS: dict[str, type[Part]] = {
    name: get_args(kind)[0] for name, kind in get_type_hints(Audit).items() if name != "missing"
}
PROBES = {name: part.quantities.probe for name, part in PARTS.items()}
"""The probe that measures each part."""


def read_audit(reader: RunReader) -> Audit:
    run = one_pass(reader)
    return run.remember("audit", lambda: _read(run))


def _read(reader: RunReader) -> Audit:
    by_class: dict[str, list[Record]] = {}
    measured = any(class_of(label) in PROBES.values() for label in labels(reader))
    for record in reader.records() if measured else ():
        by_class.setdefault(class_of(record.probe), []).append(record)
    parts: dict[str, Any] = {}
    missing = {}
    for name, probe in PROBES.items():
        recorded = by_class.get(probe, [])
        records = [r for r in recorded if not r.error and any(t.scopes for t in r.tables)]
        if not records:
            errors = [str(r.error).strip().splitlines()[0][:300] for r in recorded if r.error]
            reason = f"failed: {errors[-1]}" if errors else "recorded no number" if recorded else "was not run"
            missing[name] = f"{probe} {reason}"
            continue
        used = records[-1:]
        if name == "configurations":  # those tried on the same data belong together
            data = [[r.notes.get(key) for key in ("examples", "positions", "scheme")] for r in records]
            used = [r for r, same in zip(records, data, strict=True) if same == data[-1]]
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
