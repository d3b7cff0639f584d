"""Audits of several models side by side, as a page and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.comparison.audits import METRICS, Metric, audit_rows, notes
from learnscope.comparison.ranking_figure import ranking_figure
from learnscope.comparison.ranking_words import ranking_table, ranking_verdict, rewind_lines, rewind_tables
from learnscope.reading.audit import Audit
from learnscope.reading.audit_numbers import Number
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, count
from learnscope.report.audit.marks import absent, dots, ends, limit, log_axis, log_span, name_rows
from learnscope.report.layout import INK, head, new_figure, panels_on, save
from learnscope.report.markdown import escape, table
from learnscope.report.style import COLOURS, finish, guides
from learnscope.store.files import write_text

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison


RANKING = "ranking.png"


def save_audits(comparison: Comparison, folder: Path, cuts: Cuts | None = None) -> Path:
    """Write comparison.md, comparison.png, and ranking.png where models are ranked; returns the path of the first."""
    audits = comparison.audits
    parts = ["# Models side by side"]
    ranked = None if comparison.ranking is None else ranking_figure(comparison.ranking)
    parts += _drawn(ranked, folder / RANKING, "All models on one frontier")
    parts += [*ranking_text(comparison), "## Each model's own numbers", *audit_text(audits)]
    parts += _drawn(audit_figure(audits, cuts or Cuts()), folder / "comparison.png", "Models side by side")
    missing = [(name, part, why) for name, audit in audits.items() for part, why in audit.missing.items()]
    if missing:
        parts += ["## Not run", table(("model", "part", "why"), missing)]
    write_text(folder / "comparison.md", "\n\n".join(parts) + "\n")
    return folder / "comparison.md"


def _drawn(figure: Figure | None, path: Path, title: str) -> list[str]:
    """The figure's place in the text; a file of an earlier comparison is removed where there is none."""
    if figure is None:
        path.unlink(missing_ok=True)
        return []
    save(figure, path)
    return [f"![{title}]({path.name})"]


def ranking_text(comparison: Comparison) -> list[str]:
    """The verdict over all models, their frontier as a table, and layers beside those of a base model."""
    ranking, parts = comparison.ranking, list[str]()
    if ranking is not None:
        verdict = ranking_verdict(ranking, comparison.audits, rewind_lines(comparison.opened))
        parts += ["## Verdict", table(("", ""), [(escape(label), escape(said)) for label, said in verdict])]
        parts += ranking_table(ranking)
    return [*parts, *rewind_tables(comparison.opened)]


def audit_text(audits: Mapping[str, Audit]) -> list[str]:
    """The table of the numbers, what its marks mean, and why some may not be comparable."""
    return [
        table(("metric", *map(escape, audits)), audit_rows(audits)),
        "Intervals of 95 % are in brackets; the best number of a row has a star where no other's interval reaches it.",
        *(escape(note) for note in notes(audits)),
    ]


def audit_figure(audits: Mapping[str, Audit], cuts: Cuts) -> Figure | None:
    """A panel for every metric that any model has, a row for every model."""
    shown = [m for m in METRICS if any(m.get(audit).value is not None for audit in audits.values())]
    if not shown:
        return None
    across = min(len(shown), 3)
    down = -(-len(shown) // across)
    figure = new_figure(1.0 + down * (0.95 + max(0.3 * len(audits), 0.9)), 12.0)
    grid = figure.subplots(down, across, squeeze=False)
    for axes, metric, _ in panels_on(grid, shown):
        _panel(axes, metric, audits, cuts)
        name_rows(axes, list(audits) if axes in grid[:, 0] else [""] * len(audits), 24)
    head(figure, "Models side by side", f"{count(len(audits), 'model')}; bars: 95 % intervals; dashed: thresholds")
    return figure


def _panel(axes: Axes, metric: Metric, audits: Mapping[str, Audit], cuts: Cuts) -> None:
    numbers = []
    for number in map(metric.get, audits.values()):
        value, low, high = (None if n is None else n / metric.scale for n in (number.value, number.low, number.high))
        numbers.append(Number(value, low, high, number.reason, number.no_interval))
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(numbers))]
    dots(axes, numbers, colours, [True] * len(numbers))
    absent(axes, numbers)
    shown = [value for end in ends(numbers) for value in end[np.isfinite(end)]]
    if metric.cut:
        shown.append(getattr(cuts, metric.cut) / metric.scale)
        limit(axes, shown[-1], metric.cut)
    span = log_span(shown)
    if span is not None and min(shown) > 0 and max(shown) > 20 * min(shown):
        log_axis(axes, *span, x=True, most=5)
    else:
        axes.margins(x=0.15)
        axes.locator_params(axis="x", nbins=4)
    guides(axes, "both")
    finish(axes, metric.unit, size=10)
    better = "more is better" if metric.more_is_better else "less is better"
    axes.set_title(f"{capital(metric.name)} ({better})", loc="left", fontsize=10, color=INK)
