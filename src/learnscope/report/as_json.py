"""The report as JSON, for pipelines and agents: verdict, findings, checks. Its schema is `report.schema.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from learnscope.findings.checks import checks_of
from learnscope.reading.course.best import best_step
from learnscope.reading.gather import one_pass
from learnscope.record import Finding, plain_json
from learnscope.report.facts import costs, watched
from learnscope.report.page.catalogue import catalogue
from learnscope.report.page.findings import recorded_of
from learnscope.report.page.panels import frame_line
from learnscope.report.page.verdict import verdict_of
from learnscope.store.backend import FolderBackend
from learnscope.store.reader import RunReader

SCHEMA_VERSION = 1
COSTS = ("probe", "firings", "mean_ms", "total_s", "share")


def report_json(reader: RunReader, findings: Sequence[Finding], *, name: str) -> dict[str, Any]:
    """Strict JSON: null for what is not known."""
    run = one_pass(reader)
    checks, recorded, best = checks_of(run), catalogue(run), best_step(run)
    verdict = verdict_of(run, findings, checks)
    body = {
        "schema": SCHEMA_VERSION, "name": name,
        "path": str(run.backend.path) if isinstance(run.backend, FolderBackend) else None,
        "source": run.manifest.get("source"), "status": run.status,
        "verdict": {key: verdict[key] for key in ("severity", "sentence", "counts", "checked")},
        "last_step": verdict["last_step"], "seconds": verdict["seconds"],
        "best": None if best is None else {
            "step": best.step, "value": best.value, "of": best.of, "name": best.quantity.name,
        },
        "findings": [
            finding.to_json() | {"python": frame_line(behind) if (behind := recorded_of(finding, recorded)) else None}
            for finding in findings
        ],
        "checks": [
            {"name": c.name, "state": c.state, "reason": c.reason, "how_to_enable": c.how_to_enable or None,
             "findings": [finding.fingerprint for finding in c.findings]}
            for c in checks
        ],
        "facts": dict(watched(run)),
        "costs": [dict(zip(COSTS, line, strict=True)) for line in costs(run)],
        "problems": list(run.last_problems),
    }  # fmt: skip
    plain: dict[str, Any] = plain_json(body)
    return plain


def schema() -> dict[str, Any]:
    """The JSON Schema that every report satisfies."""
    body: dict[str, Any] = json.loads(
        files("learnscope.report").joinpath("report.schema.json").read_text(encoding="utf-8")
    )
    return body
