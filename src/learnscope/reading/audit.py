"""What an audit measured, part by part, read from its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

from learnscope.quantities import bits
from learnscope.reading import audit_answers, audit_parts
from learnscope.reading.audit_numbers import Part, entries_of
from learnscope.reading.cost import audit_cost
from learnscope.reading.gather import class_of, labels, one_pass
from learnscope.record import Record
from learnscope.store.reader import RunReader


class Frontier(audit_parts.Optimum):
    """All ways to store the model that were tried, judged on examples that the search did not see."""

    quantities = bits.BitFrontier

    def choice(self, question: str) -> tuple[audit_parts.Configuration, Mapping[str, Any]] | None:
        """The configuration that answers a question, and what it loses."""
        facts: Mapping[str, Any] = (self.notes.get("choices") or {}).get(question) or {}
        item = self.named(facts.get("name"))
        return None if item is None else (item, facts)

    def scheme(self, name: str) -> Mapping[str, Any]:
        """The way in which the weights of a configuration are rounded."""
        return (self.notes.get("schemes") or {}).get(name) or self.notes.get("scheme") or {}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All parts of an audit. A part that was not measured is None, and `missing` has the reason."""

    quality: audit_answers.Quality | None = None
    speed: audit_cost.Speed | None = None
    memory: audit_cost.Memory | None = None
    layers: audit_cost.Layers | None = None
    sensitivity: audit_parts.Sensitivity | None = None
    configurations: audit_parts.Configurations | None = None
    optimum: audit_parts.Optimum | None = None
    exported: audit_cost.Exported | None = None
    tasks: audit_answers.Tasks | None = None
    prompts: audit_answers.Prompts | None = None
    attacks: audit_parts.Attacks | None = None
    noise: audit_parts.Noise | None = None
    perturbations: audit_parts.Perturbations | None = None
    transfer: audit_parts.Transfer | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    autoattack: audit_parts.AutoAttacks | None = None
    """Only where it was asked for, and so never missing."""

    def __bool__(self) -> bool:
        """Whether any part was measured."""
        return len(self.missing) < len(PARTS)


PARTS: dict[str, type[Part]] = {
    name: get_args(kind)[0] for name, kind in get_type_hints(Audit).items() if name not in ("missing", "autoattack")
}
PROBES = {name: part.quantities.probe for name, part in PARTS.items()}
"""The probe that measures each part."""
FRONTIER = Frontier.quantities.probe
"""The probe that searches all of it: what it tried are configurations, and what it recommends is the optimum."""


AUTOATTACK = audit_parts.AutoAttacks.quantities.probe


def read_audit(reader: RunReader) -> Audit:
    run = one_pass(reader)
    return run.remember("audit", lambda: _read(run))


def _read(reader: RunReader) -> Audit:
    by_class: dict[str, list[Record]] = {}
    measured = any(class_of(label) in (FRONTIER, AUTOATTACK, *PROBES.values()) for label in labels(reader))
    for record in reader.records() if measured else ():
        by_class.setdefault(class_of(record.probe), []).append(record)
    parts: dict[str, Any] = {}
    missing = {}
    for name, usual in PROBES.items():
        searched = FRONTIER in by_class and (name == "optimum" or (name == "configurations" and usual not in by_class))
        probe = FRONTIER if searched else usual
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
        kind = Frontier if searched and name == "optimum" else PARTS[name]
        parts[name] = kind(records[-1].probe, _notes(used), entries_of(used))
    if asked := [r for r in by_class.get(AUTOATTACK, []) if not r.error]:
        parts["autoattack"] = audit_parts.AutoAttacks(AUTOATTACK, _notes(asked[-1:]), entries_of(asked[-1:]))
    return Audit(**parts, missing=missing)


def _notes(records: Iterable[Record]) -> dict[str, Any]:
    """Notes that are mappings, such as those by configuration, are merged; of others the last record's count."""
    notes: dict[str, Any] = {}
    for record in records:
        for key, value in record.notes.items():
            both = isinstance(value, Mapping) and isinstance(notes.get(key), Mapping)
            notes[key] = {**notes[key], **value} if both else value
    return notes
