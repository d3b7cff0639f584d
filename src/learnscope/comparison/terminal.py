"""A comparison on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from learnscope.characters import visible
from learnscope.comparison import words
from learnscope.comparison.audits import audit_rows
from learnscope.comparison.ranking_words import ranking_verdict, rewind_lines
from learnscope.comparison.series import direction
from learnscope.reading.words import count
from learnscope.report.terminal import print_verdict

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison

ROWS = 20
"""Most rows of a table; the others are counted."""
CELL = 40
GAP = 2
"""Spaces between two columns."""


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
    if comparison.ranking is not None:
        console.print()
        _say(console, "All models on one frontier", style="bold")
        print_verdict(ranking_verdict(comparison.ranking, comparison.audits, rewind_lines(comparison.opened)), console)
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
        _table(console, "Last values", head, rows, rest, right=True)
    for label in comparison.labels:
        alone = sum(list(line.of) == [label] for line in lines)
        if alone:
            _say(console, f"only {label} has {count(alone, 'more series', 'more series')} of the model as a whole")


def _table(
    console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], rest: str, *,
    right: bool = False, keep_last: bool = False,
) -> None:  # fmt: skip
    """The first rows, and how many more there are; `keep_last` for a row that sums up the others.

    In a narrow terminal the names keep up to two fifths of the width, and the other cells wrap.
    """
    table = Table(
        title=Text(visible(title)),
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, GAP, 0, 0),
    )
    shown = rows if len(rows) <= ROWS else [*rows[: ROWS - keep_last], *rows[len(rows) - keep_last :]]
    for n, (cell, width) in enumerate(zip(head, _widths([head, *shown], console.width), strict=True)):
        # Text: a name in square brackets must not be read as markup
        justify: Literal["left", "right"] = "right" if right and n else "left"
        table.add_column(Text(visible(cell)), justify=justify, overflow="fold", width=width)
    for row in shown:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console.print()
    console.print(table)
    if len(rows) > len(shown):
        _say(console, f"and {len(rows) - len(shown):,} more, {rest}")


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """The widths of the columns: as wide as their cells where there is room, else the same share for all but the names.

    >>> _widths([("name", "a", "b"), ("loss", "0.5", "0.25")], 80), _widths([("n" * 50, "a" * 30, "b" * 30)], 80)
    ([4, 3, 4], [32, 22, 22])
    """
    wanted = [max(len(visible(cell)) for cell in column) for column in zip(*rows, strict=True)]
    left = room - GAP * (len(wanted) - 1)
    if sum(wanted) <= left:
        return wanted
    names = min(wanted[0], room * 2 // 5)
    shares = dict.fromkeys(range(1, len(wanted)), 0)
    left -= names
    for place in sorted(shares, key=wanted.__getitem__):  # what a narrow one leaves goes to the wider
        shares[place] = max(min(wanted[place], left // sum(not width for width in shares.values())), 1)
        left -= shares[place]
    return [names, *shares.values()]


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style=style))
