"""All numbers of an audit as strict JSON: what is not there is null, with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from learnscope.reading.audit_sheet import Sheet, sheets
from learnscope.reading.cuts import Cuts
from learnscope.record import Finding
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
    found, missing = sheets(reader)
    given = about.get("model")
    model = {**(reader.manifest.get("model") or {}), **(given if isinstance(given, Mapping) else {})}
    more = {key: value for key, value in about.items() if not (key == "model" and isinstance(given, Mapping))}
    body: dict[str, Any] = {"schema": SCHEMA, "name": name, "model": model, "about": more}
    for section, parts in SECTIONS.items():
        body[section] = {part: _part(found[part]) for part in parts if part in found} or None
    thresholds = {key: value for key, value in asdict(cuts).items() if key.startswith("audit_")}
    body |= {
        "findings": [finding.to_json() for finding in findings], "thresholds": thresholds, "not_run": dict(missing),
        "environment": reader.manifest.get("environment") or None,
    }  # fmt: skip
    return dict(strict(body))


def _part(sheet: Sheet) -> dict[str, Any]:
    """One entry for every scope and its labels; `reasons` has those of the values that are null."""
    rows = []
    for (kind, scope, labels), cells in sheet.cells.items():
        row: dict[str, Any] = {"kind": kind, "scope": scope, "labels": dict(labels),
                               "values": {name: value for name, (value, _) in cells.items()}}  # fmt: skip
        reasons = {name: why or "not measured" for name, (value, why) in cells.items() if value is None}
        rows.append(row | ({"reasons": reasons} if reasons else {}))
    return {"probe": sheet.probe, "notes": dict(sheet.notes), "rows": rows}


def strict(value: Any) -> Any:
    """As JSON can hold it: numbers that are not finite are null, and what it has no form for is text.

    >>> strict({"a": float("nan"), 1: (2, {3})})
    {'a': None, '1': [2, '{3}']}
    """
    if isinstance(value, Mapping):
        return {str(key): strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
