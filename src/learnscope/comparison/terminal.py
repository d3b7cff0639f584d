"""A comparison on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from learnscope.characters import visible
from learnscope.comparison import words
from learnscope.comparison.audits import audit_rows
from learnscope.comparison.series import direction
from learnscope.reading.words import count

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison

ROWS = 20
"""Most rows of a table; the others are counted."""
CELL = 40


def print_comparison(comparison: Comparison, console: Console, rest: str) -> None:
    """Print where the runs part, settings that differ, and last values; `rest` says where to find the other rows."""
    for parting in comparison.partings:
        _say(console, words.parting_text(parting, comparison.tolerance), style="bold")
    for note in comparison.notes:
        _say(console, f"note: {note}", style="yellow")
    settings = words.setting_rows(comparison, CELL)
    if settings:
        _table(console, "Settings that differ", ("setting", *comparison.labels), settings, rest)
    else:
        console.print()
        _say(console, "Settings: no difference.")
    _print_values(comparison, console, rest)
    if comparison.audits:
        _table(console, "Models side by side", ("metric", *comparison.labels), audit_rows(comparison.audits), rest)
    weights = comparison.weights
    for label in weights.distances:
        head, rows = words.weight_table(weights, label)
        title = f"Weights of {label} from those of {weights.reference}"
        _table(console, title, head, rows, rest, right=True, keep_last=True)
    console.print()
    for note in words.weight_notes(weights):
        _say(console, note)


def _print_values(comparison: Comparison, console: Console, rest: str) -> None:
    """The series that several runs have: losses and accuracies first, then those that differ."""
    lines = words.main_lines(comparison)
    common = [line for line in lines if len(line.of) > 1]
    common.sort(key=lambda line: (direction(line.key) is None, not any(line.parts_at.values())))
    if common:
        head, rows = words.last_head(comparison), words.last_rows(comparison, common)
        n = len(comparison.labels)
        if n > 2:  # no room for differences beside the values themselves
            head, rows = (*head[: n + 1], head[-1]), [(*row[: n + 1], row[-1]) for row in rows]
        _table(console, "Last values", head, rows, rest, right=True, wrap_first=True)
    for label in comparison.labels:
        alone = sum(list(line.of) == [label] for line in lines)
        if alone:
            _say(console, f"only {label} has {count(alone, 'more series', 'more series')} of the model as a whole")


def _table(
    console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], rest: str, *,
    right: bool = False, keep_last: bool = False, wrap_first: bool = False,
) -> None:  # fmt: skip
    """The first rows, and how many more there are; `keep_last` for a row that sums up the others.

    In a narrow terminal the first column keeps its width and the others wrap; with `wrap_first` the other way round.
    """
    table = Table(
        title=Text(visible(title)),
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    for n, cell in enumerate(head):
        # Text: a name in square brackets must not be read as markup
        table.add_column(
            Text(visible(cell)), justify="right" if right and n else "left", no_wrap=(n == 0) != wrap_first
        )
    shown = rows if len(rows) <= ROWS else [*rows[: ROWS - keep_last], *rows[len(rows) - keep_last :]]
    for row in shown:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console.print()
    console.print(table)
    if len(rows) > len(shown):
        _say(console, f"and {len(rows) - len(shown):,} more, {rest}")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style=style))
