"""From records to findings: statements about a run with their evidence and what to do about them.

Each analysis is a function of a run and of the cuts, marked with `@analysis`. None needs torch.
"""

from learnscope.findings.registry import analyses, findings_of
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import one_pass
from learnscope.record import SEVERITIES, Finding
from learnscope.store.reader import RunReader

__all__ = ["Cuts", "find"]


def find(reader: RunReader, cuts: Cuts | None = None) -> list[Finding]:
    """All findings of a run, the gravest first."""
    cuts = cuts or Cuts()
    run = one_pass(reader)
    findings = [finding for analysis in analyses() for finding in findings_of(analysis, run, cuts)]
    return sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))
