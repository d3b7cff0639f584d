"""A comparison as a card in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learnscope.comparison.series import Key
from learnscope.comparison.words import parting_text, setting_cells
from learnscope.reading.words import num
from learnscope.record.display import card, facts_line, safe, small_table

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison

SETTINGS, NUMBERS, LONGEST = 20, 20, 60
"""Rows of each table, and characters of a setting."""


def comparison_card(comparison: Comparison) -> str:
    """Where the runs part, what was set differently, and the last values of the model's numbers."""
    labels = comparison.labels
    partings = [safe(parting_text(parting, comparison.tolerance)) for parting in comparison.partings]
    settings = [(each.key, *setting_cells(list(each.values.values()), LONGEST)) for each in comparison.differences]
    lines = [line for line in comparison.lines if line.key.kind == "model"][:NUMBERS]
    last = [(str(line.key), *(_last(comparison, line.key, label) for label in labels)) for line in lines]
    more = len(settings) - SETTINGS
    return card(
        f"<b>{safe(' and '.join(labels))}</b>",
        facts_line(f"{facts.label}: {facts.status}" for facts in comparison.runs),
        *partings, small_table(["setting", *labels], settings[:SETTINGS]) if settings else "No setting differs.",
        f"and {more:,} more settings" if more > 0 else "",
        small_table(["last value", *labels], last) if last else "",
    )  # fmt: skip


def _last(comparison: Comparison, key: Key, label: str) -> str:
    series = comparison.of(key).get(label)
    finite = None if series is None else series.finite
    return "n/a" if finite is None or not len(finite) else num(float(finite.values[-1]))
