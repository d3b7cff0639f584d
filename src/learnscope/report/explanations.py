"""What a finding explains, what was ruled out, and what was not checked, in words."""

from __future__ import annotations

from collections.abc import Sequence

from learnscope.findings.checks import Check, not_checked
from learnscope.record import Finding
from learnscope.record.finding import with_taken_in


def no_problems(checks: Sequence[Check]) -> str:
    """What to say when nothing was found: never without what was not looked at.

    >>> no_problems([Check("loss", "passed", ""), Check("holdout", "not measured", "")])
    'No problems found; not checked: holdout.'
    >>> no_problems([Check("loss", "passed", "")])
    'No problems found; every check that applies had its numbers.'
    """
    if not any(check.state in ("passed", "failed") for check in checks):
        return "Nothing was checked, so nothing was found."
    missing = not_checked(checks)
    if not missing:
        return "No problems found; every check that applies had its numbers."
    return f"No problems found; not checked: {', '.join(missing)}."


def symptoms(finding: Finding) -> list[str]:
    """What a finding explains, one line each."""
    return [f"{inside.title}. {inside.detail}" for inside in with_taken_in(finding.taken_in)]


def explanation(finding: Finding) -> list[tuple[str, str]]:
    """What else belongs to a finding, each a heading with its sentence."""
    against = {
        "new": "The baseline run does not have it.",
        "worse": "The baseline run has it too, less grave.",
        "gone": "The baseline run has it; this run does not.",
    }
    said = [("Against the baseline", against[finding.against])] if finding.against else []
    said += [("Acknowledged", finding.acknowledged)] if finding.acknowledged is not None else []
    said += [("Ruled out", " ".join(finding.ruled_out))] if finding.ruled_out else []
    return said + [("Or else", " ".join(finding.alternatives))] * bool(finding.alternatives)
