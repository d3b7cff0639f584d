"""Findings on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from learnscope.characters import visible
from learnscope.record import Finding

STYLES = {"critical": "bold white on red", "warning": "bold black on yellow", "info": "bold white on blue"}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """One short block a finding: severity and title, what was measured, what to do."""
    if not findings:
        console.print(Text("No finding: no number crossed a cut."))
        return
    edge = " " if console.is_terminal else ""  # room for the background colour
    for finding in findings:
        title, detail, advice = (" ".join(visible(t).split()) for t in (finding.title, finding.detail, finding.advice))
        # Text, not markup: a message in square brackets is a message
        badge = (f"{edge}{finding.severity.upper()}{edge}", STYLES[finding.severity])
        _print(console, Text.assemble(badge, "  ", (title, "bold")), 0)
        _print(console, Text(detail), 3)
        _print(console, Text(f"→ {advice}", style="green"), 3)
        console.print()


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
