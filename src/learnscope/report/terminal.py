"""Findings on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from learnscope.characters import visible
from learnscope.findings.checks import Check
from learnscope.record import Finding
from learnscope.report.explanations import explanation, no_problems, symptoms

STYLES = {"critical": "bold white on red", "warning": "bold black on yellow", "info": "bold white on blue"}


STATES = {"passed": "green", "failed": "bold red", "not measured": "yellow", "not applicable": "dim"}


def print_findings(findings: Sequence[Finding], console: Console, checks: Sequence[Check] = ()) -> None:
    """One short block a finding: severity and title, what was measured, what it explains, what to do.

    Without a problem, `checks` tell what was not looked at.
    """
    quiet = all(finding.severity == "info" or finding.acknowledged is not None for finding in findings)
    if quiet and (checks or not findings):
        _print(console, Text(visible(no_problems(checks)) if checks else "No problems found."), 0)
    edge = " " if console.is_terminal else ""  # room for the background colour
    for finding in findings:
        title, detail, advice = (" ".join(visible(t).split()) for t in (finding.title, finding.detail, finding.advice))
        # Text, not markup: a message in square brackets is a message
        settled = "acknowledged" if finding.acknowledged is not None else finding.severity
        badge = (f"{edge}{settled.upper()}{edge}", STYLES["info" if settled == "acknowledged" else finding.severity])
        _print(console, Text.assemble(badge, "  ", (title, "bold")), 0)
        _print(console, Text(detail), 3)
        for heading, text in explanation(finding):
            _print(console, Text(f"{heading}: {' '.join(visible(text).split())}"), 3)
        _print(console, Text(f"→ {advice}", style="green"), 3)
        _print(console, Text(f"fingerprint {finding.fingerprint}", style="dim"), 3)
        for line in symptoms(finding):
            _print(console, Text(f"this explains: {' '.join(visible(line).split())}", style="dim"), 5)
        console.print()


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """One row a check; below those without numbers, how to get them."""
    grid = Table(box=None, show_header=False, pad_edge=False)
    for fixed in (True, False, False):
        grid.add_column(no_wrap=fixed)
    for check in checks:
        name, reason, how = (" ".join(visible(t).split()) for t in (check.name, check.reason, check.how_to_enable))
        why = Text.assemble(reason, (f" → {how}" if how else "", "green"))
        grid.add_row(Text(check.state, style=STATES[check.state]), Text(name, style="bold"), why)
    console.print(grid)


def _print(console: Console, text: Text, indent: int) -> None:
    """Wrapped and indented, without the spaces that rich fills lines up with; "5 %" stays in one line."""
    width = max(console.width - indent, 20)
    lines = textwrap.wrap(text.plain.replace(" %", "\u00a0%"), width, break_long_words=False, break_on_hyphens=False)
    start = 0
    for line in lines:
        # with the styles that the text has at this place
        part = text[start : start + len(line)]
        start += len(line) + 1
        console.print(Text(" " * indent).append_text(part), soft_wrap=True)
