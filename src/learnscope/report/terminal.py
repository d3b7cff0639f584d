"""Findings on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from learnscope.record import Finding

STYLES = {"critical": "bold white on red", "warning": "bold black on yellow", "info": "bold white on blue"}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """One short block a finding: severity and title, what was measured, what to do."""
    if not findings:
        console.print(Text("No finding: no number crossed a cut."))
        return
    for finding in findings:
        # Text, not markup: a message in square brackets is a message
        head = Text.assemble((f" {finding.severity.upper()} ", STYLES[finding.severity]), "  ", (finding.title, "bold"))
        console.print(head)
        console.print(Padding(Text(finding.detail), (0, 0, 0, 3), expand=False))
        console.print(Padding(Text(f"→ {finding.advice}", style="green"), (0, 0, 1, 3), expand=False))
