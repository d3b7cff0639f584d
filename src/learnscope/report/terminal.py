"""Findings on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from learnscope.record import Finding

STYLES = {"critical": "bold white on red", "warning": "bold black on yellow", "info": "bold white on blue"}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """One short block a finding: severity and title, what was measured, what to do."""
    if not findings:
        console.print(Text("No finding: no number crossed a cut."))
        return
    edge = " " if console.is_terminal else ""  # room for the background colour
    for finding in findings:
        # Text, not markup: a message in square brackets is a message
        badge = (f"{edge}{finding.severity.upper()}{edge}", STYLES[finding.severity])
        _print(console, Text.assemble(badge, "  ", (finding.title, "bold")), 0)
        _print(console, Text(finding.detail), 3)
        _print(console, Text(f"→ {finding.advice}", style="green"), 3)
        console.print()


def _print(console: Console, text: Text, indent: int) -> None:
    """Wrapped and indented, without the spaces that rich fills lines up with."""
    for line in text.wrap(console, max(console.width - indent, 20)):
        line.rstrip()
        console.print(Text(" " * indent).append_text(line), soft_wrap=True)
