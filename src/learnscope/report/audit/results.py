"""All numbers of an audit as strict JSON: what is not there is null, with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import Part
from learnscope.reading.cuts import Cuts
from learnscope.record import Finding, plain_json
from learnscope.store.reader import RunReader

SCHEMA = 1
SECTIONS = {
    "performance": ("quality", "speed", "memory", "layers"),
    "bit_widths": ("sensitivity", "configurations", "optimum", "exported"),
    "robustness": ("attacks", "noise", "perturbations", "transfer"),
}
"""The sections of the results and the parts of an audit that each holds."""


def results(
    reader: RunReader, findings: Sequence[Finding], *, cuts: Cuts, name: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Every number of every part, what was found, and why parts are missing."""
    audit = read_audit(reader)
    given = about.get("model")
    model = {**(reader.manifest.get("model") or {}), **(given if isinstance(given, Mapping) else {})}
    more = {key: value for key, value in about.items() if not (key == "model" and isinstance(given, Mapping))}
    body: dict[str, Any] = {"schema": SCHEMA, "name": name, "model": model, "about": more}
    for section, parts in SECTIONS.items():
        body[section] = {part: _part(getattr(audit, part)) for part in parts if part not in audit.missing} or None
    thresholds = {key: value for key, value in asdict(cuts).items() if key.startswith("audit_")}
    body |= {
        "findings": [finding.to_json() for finding in findings], "thresholds": thresholds,
        "not_run": dict(audit.missing), "environment": reader.manifest.get("environment") or None,
    }  # fmt: skip
    return dict(plain_json(body))


def _part(part: Part) -> dict[str, Any]:
    """One entry for every scope and its labels; `reasons` has those of the values that are null."""
    rows = []
    for one in part.entries:
        row: dict[str, Any] = {"kind": one.kind, "scope": one.scope, "labels": dict(one.labels),
                               "values": {name: value for name, (value, _) in one.cells.items()}}  # fmt: skip
        reasons = {name: why or "not measured" for name, (value, why) in one.cells.items() if value is None}
        rows.append(row | ({"reasons": reasons} if reasons else {}))
    return {"probe": part.probe, "notes": dict(part.notes), "rows": rows}
