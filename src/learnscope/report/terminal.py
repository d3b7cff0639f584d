"""Findings on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from learnscope.characters import visible
from learnscope.findings.checks import Check, not_checked
from learnscope.record import Finding
from learnscope.report.explanations import explanation, no_problems, symptoms

STYLES = {"critical": "bold white on red", "warning": "bold black on yellow", "info": "bold white on blue"}


STATES = {"passed": "green", "failed": "bold red", "not measured": "yellow", "not applicable": "dim"}


MOST_LINES = 5
"""Of one finding, where they are shortened."""
NAMED = 5
"""Checks without numbers that are named there; `learnscope checks` lists all."""


def print_findings(
    findings: Sequence[Finding], console: Console, checks: Sequence[Check] = (), *, more: str | None = None
) -> None:
    """One block a finding: severity and title, what was measured, what it explains, what to do.

    Without a problem, `checks` tell what was not looked at. With `more`, which says where all of it is, a finding takes
    five lines at most.
    """
    quiet = all(finding.severity == "info" or finding.acknowledged is not None for finding in findings)
    if quiet and (checks or not findings):
        said = no_problems(checks, None if more is None else NAMED) if checks else "No problems found."
        said += " `learnscope checks` lists them." if more is not None and len(not_checked(checks)) > NAMED else ""
        _print(console, Text(visible(said)), 0)
    shortened = [_print_finding(finding, console, short=more is not None) for finding in findings]
    if any(shortened):
        _print(console, Text(str(more), style="dim"), 0)


def print_verdict(lines: Sequence[tuple[str, str]], console: Console) -> None:
    """A line for each answer, with what it is about in front; long ones go on under themselves."""
    wide = max((len(label) for label, _ in lines), default=0)
    for label, said in lines:
        wrapped = _wrapped(Text(" ".join(visible(said).split())), max(console.width - wide - 2, 20))
        for number, part in enumerate(wrapped):
            console.print(Text.assemble((f"{label if not number else '':{wide}}  ", "bold"), part))
    console.print()


def _print_finding(finding: Finding, console: Console, *, short: bool) -> bool:
    """Whether something of it was left out."""
    title, detail, advice = (" ".join(visible(t).split()) for t in (finding.title, finding.detail, finding.advice))
    edge = " " if console.is_terminal else ""  # room for the background colour
    # Text, not markup: a message in square brackets is a message
    settled = "acknowledged" if finding.acknowledged is not None else finding.severity
    badge = (f"{edge}{settled.upper()}{edge}", STYLES["info" if settled == "acknowledged" else finding.severity])
    against = f" {visible(finding.against).upper()}" if short and finding.against else ""
    sign = f"  {finding.fingerprint}" if short else ""
    used = _print(console, Text.assemble(badge, against, "  ", (title, "bold"), (sign, "dim")), 0)
    action = Text(f"→ {advice}", style="green")
    if short:
        room = max(MOST_LINES - used, 2)
        reserved = min(len(_wrapped(action, console.width - 3)), max(room - 2, 1))
        _print(console, Text(detail), 3, room - reserved)
        _print(console, action, 3, reserved)
    else:
        _print(console, Text(detail), 3)
        for heading, text in explanation(finding):
            _print(console, Text(f"{heading}: {' '.join(visible(text).split())}"), 3)
        _print(console, action, 3)
        _print(console, Text(f"fingerprint {finding.fingerprint}", style="dim"), 3)
        for line in symptoms(finding):
            _print(console, Text(f"this explains: {' '.join(visible(line).split())}", style="dim"), 5)
    console.print()
    return short


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


def print_runs(found: Mapping[str, Sequence[Finding]], broken: Mapping[str, str], console: Console) -> None:
    """One line a run: its gravest finding, and how many more there are."""
    for name, findings in found.items():
        grave = [finding for finding in findings if finding.severity != "info" and finding.acknowledged is None]
        more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
        said = (
            f"{grave[0].severity.upper()}  {' '.join(visible(grave[0].title).split())}{more}"
            if grave
            else "no problems found"
        )
        _print(console, Text.assemble((visible(name), "bold"), "  ", said), 0)
    for name, why in broken.items():
        _print(console, Text.assemble((visible(name), "bold"), "  ", ("could not be read: ", "red"), visible(why)), 0)


def _print(console: Console, text: Text, indent: int, most: int | None = None) -> int:
    """Wrapped and indented, without the spaces that rich fills lines up with, in at most so many lines; how many."""
    lines = _wrapped(text, console.width - indent)
    start = 0
    for number, line in enumerate(lines[:most], 1):
        # with the styles that the text has at this place
        part = text[start : start + len(line)]
        start += len(line) + 1
        if number == most and len(lines) > number:
            part = Text(part.plain[: max(console.width - indent, 20) - 2] + " …", style=text.style)
        console.print(Text(" " * indent).append_text(part), soft_wrap=True)
    return len(lines[:most])


def _wrapped(text: Text, width: int) -> list[str]:
    """The lines of a text; "5 %" stays in one line."""
    plain = text.plain.replace(" %", "\u00a0%")
    return textwrap.wrap(plain, max(width, 20), break_long_words=False, break_on_hyphens=False)
