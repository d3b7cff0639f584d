"""Audits of several models side by side, as a page and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.comparison.audits import METRICS, Metric, audit_rows, notes
from learnscope.reading.audit import Audit
from learnscope.reading.audit_numbers import Number
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, count
from learnscope.report.audit.marks import absent, dots, ends, limit, log_axis, log_span, name_rows
from learnscope.report.layout import INK, head, new_figure, panels_on, save
from learnscope.report.markdown import escape, table
from learnscope.report.style import COLOURS, finish, guides
from learnscope.store.files import write_text


def save_audits(audits: Mapping[str, Audit], folder: Path, cuts: Cuts | None = None) -> Path:
    """Write comparison.md and comparison.png; returns the path of the first."""
    figure, plot = audit_figure(audits, cuts or Cuts()), folder / "comparison.png"
    parts = ["# Models side by side", *audit_text(audits)]
    if figure is None:
        plot.unlink(missing_ok=True)
    else:
        save(figure, plot)
        parts.append("![Models side by side](comparison.png)")
    missing = [(name, part, why) for name, audit in audits.items() for part, why in audit.missing.items()]
    if missing:
        parts += ["## Not run", table(("model", "part", "why"), missing)]
    write_text(folder / "comparison.md", "\n\n".join(parts) + "\n")
    return folder / "comparison.md"


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
