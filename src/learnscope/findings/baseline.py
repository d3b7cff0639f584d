"""A run held against another run of the same project: what is new, worse, and gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from learnscope.findings.explained import in_order
from learnscope.record import Finding
from learnscope.record.finding import grave, with_taken_in


def held_against(findings: Sequence[Finding], baseline: Sequence[Finding]) -> list[Finding]:
    """The findings, marked `new` or `worse` (graver), and after them those of the baseline that are `gone`.

    Findings are the same if their fingerprints are. What is gone is for information only.
    """
    before = {finding.fingerprint: finding for finding in with_taken_in(baseline)}
    now = {finding.fingerprint for finding in with_taken_in(findings)}
    gone = [
        replace(finding, against="gone", severity="info", taken_in=())
        for fingerprint, finding in before.items()
        if fingerprint not in now
    ]
    return in_order([*(_marked(finding, before.get(finding.fingerprint)) for finding in findings), *gone])


def _marked(finding: Finding, before: Finding | None) -> Finding:
    if before is None:
        return replace(finding, against="new")
    return replace(finding, against="worse") if grave(finding.severity) > grave(before.severity) else finding
