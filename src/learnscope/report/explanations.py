"""What a finding explains, what was ruled out, and what was not checked, in words."""

from __future__ import annotations

from collections.abc import Sequence

from learnscope.findings.checks import Check, not_checked
from learnscope.reading.words import between, listed, num
from learnscope.record import Evidence, Finding
from learnscope.record.finding import with_taken_in


def no_problems(checks: Sequence[Check], most: int | None = None) -> str:
    """What to say when nothing was found: never without what was not looked at, of which at most so many are named.

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
    named = ", ".join(missing) if most is None else listed(missing, most)
    return f"No problems found; not checked: {named}."


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


def evidence_text(evidence: Evidence) -> str:
    """
    >>> evidence_text(Evidence(probe="Loss", name="loss", n=3, first_step=1, last_step=9, value=0.25))
    '`loss` of Loss, n = 3, steps 1 to 9, value 0.25'
    """
    parts = [f"`{evidence.name}` of {evidence.probe}", f"n = {evidence.n:,}"]
    if evidence.first_step is not None:
        last = evidence.last_step if evidence.last_step is not None else evidence.first_step
        parts.append(between(evidence.first_step, last))
    if evidence.value is not None:
        parts.append(f"value {num(evidence.value)}")
    if evidence.interval is not None:
        parts.append(f"95 % interval {num(evidence.interval[0])} to {num(evidence.interval[1])}")
    return ", ".join(parts)
