"""Findings and checks as a page shows them: each with its panel, its span of steps, a small line and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learnscope.findings.checks import Check
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import class_of
from learnscope.record import Finding
from learnscope.record.finding import with_taken_in
from learnscope.report.explanations import evidence_text, explanation
from learnscope.report.page.catalogue import Recorded
from learnscope.report.page.curves import spark
from learnscope.report.page.panels import GRID_KINDS, MOST_CURVES, frame_line, panel_id


def finding_entries(findings: Sequence[Finding], recorded: Sequence[Recorded]) -> list[dict[str, Any]]:
    return [_entry(finding, recorded) for finding in findings]


def _entry(finding: Finding, recorded: Sequence[Recorded]) -> dict[str, Any]:
    evidence = finding.evidence
    first = evidence.first_step if evidence.first_step is not None else finding.since
    last = evidence.last_step if evidence.last_step is not None else first
    steps = None if first is None or last is None else (first, last)
    behind = recorded_of(finding, recorded)
    body: dict[str, Any] = {
        "fingerprint": finding.fingerprint, "kind": finding.kind, "severity": finding.severity,
        "title": finding.title, "detail": finding.detail, "advice": finding.advice, "cause": finding.cause,
        "evidence": evidence_text(evidence).replace("`", ""), "steps": steps, "scopes": list(finding.scopes)[:50],
        "explains": [{"title": e.title, "detail": e.detail} for e in with_taken_in(finding.taken_in)],
        "more": explanation(finding), "acknowledged": finding.acknowledged, "against": finding.against,
    }  # fmt: skip
    if behind is None:
        return body
    scopes = [scope for scope in finding.scopes if scope in behind.scopes][:5]
    as_grid = drawn_as_grid(behind)
    return body | {
        "panel": panel_id(behind, with_labels=as_grid), "view": "grid" if as_grid else "curve",
        "row": scopes[0] if scopes and as_grid else None,
        "pandas": frame_line(behind, steps, scopes), "spark": _spark(behind, scopes),
    }  # fmt: skip


def drawn_as_grid(recorded: Recorded) -> bool:
    return recorded.kind in GRID_KINDS or len(recorded.scopes) > MOST_CURVES


def recorded_of(finding: Finding, recorded: Sequence[Recorded]) -> Recorded | None:
    """The numbers that a finding rests on: those of its scopes if it names any, else of the model."""
    evidence = finding.evidence
    same = [r for r in recorded if r.name == evidence.name and evidence.probe in (r.probe, class_of(r.probe))]
    if not same:
        same = [r for r in recorded if class_of(r.probe) == class_of(evidence.probe) and r.kind == "model"][:1]
    if not same:
        same = [r for r in recorded if class_of(r.probe) == Loss.probe and r.name == Loss.loss.name]

    def fits(each: Recorded) -> tuple[bool, bool, bool]:
        named = bool(finding.scopes) and any(scope in each.scopes for scope in finding.scopes)
        return bool(finding.scopes) and not named, each.kind != "model", ("stage", "stepped") not in each.labels

    return min(same, key=fits) if same else None


def _spark(recorded: Recorded, scopes: Sequence[str]) -> dict[str, Any] | None:
    matrix = recorded.matrix()
    if not matrix.values.size:
        return None
    if scopes or len(matrix.scopes) == 1:
        return spark(matrix.steps, matrix.of(scopes[0] if scopes else matrix.scopes[0]))
    known = np.isfinite(matrix.values)  # of several scopes, their mean: the highest of many shares is always 1
    counts, mean = known.sum(axis=1), np.full(len(matrix.steps), np.nan)
    np.divide(np.where(known, matrix.values, 0.0).sum(axis=1), counts, out=mean, where=counts > 0)
    return spark(matrix.steps, mean)


def check_entries(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [
        {
            "name": check.name, "state": check.state, "reason": check.reason, "how": check.how_to_enable,
            "findings": [finding.fingerprint for finding in check.findings],
        }
        for check in checks
    ]  # fmt: skip
