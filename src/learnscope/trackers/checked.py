"""How checks ended, as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Checked:
    """How one check ended: what was found, and where it failed what to do."""

    name: str
    ok: bool
    told: str
    cure: str = ""
    seconds: float = 0.0


def print_checks(checks: Sequence[Checked], title: str, console: Console | None = None) -> int:
    """A line a check; the exit status."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("check", "result", "found"):
        table.add_column(column)
    for one in checks:
        mark = Text("ok", style="green") if one.ok else Text("failed", style="bold red")
        # Text, not markup: a message in square brackets is a message
        table.add_row(one.name, mark, Text(f"{one.told}{f' → {one.cure}' if one.cure else ''}"))
    (console or Console()).print(table)
    return 0 if all(one.ok for one in checks) else 1
