"""Audits of several models side by side, as a page and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.comparison.audits import METRICS, Metric, audit_rows, notes
from learnscope.reading.audit import Audit
from learnscope.reading.audit_numbers import Number
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, count
from learnscope.report.audit.marks import absent, dots, ends, limit, log_axis, log_span, name_rows, ruled
from learnscope.report.layout import INK, head, new_figure, save
from learnscope.report.markdown import escape, table
from learnscope.report.style import COLOURS, finish
from learnscope.store.files import write_text


def save_audits(audits: Mapping[str, Audit], folder: Path, cuts: Cuts | None = None) -> Path:
    """Write comparison.md and comparison.png; the path of the first. A number that a model lacks has its reason."""
    figure, plot = audit_figure(audits, cuts or Cuts()), folder / "comparison.png"
    if figure is None:
        plot.unlink(missing_ok=True)
    else:
        save(figure, plot)
    parts = ["# Models side by side", *audit_text(audits)]
    if figure is not None:
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
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.set(xticks=[], yticks=[])
            axes.set_visible(False)
            continue
        _panel(axes, shown[place], audits, cuts)
        name_rows(axes, list(audits) if place % across == 0 else [""] * len(audits), 24)
    head(figure, "Models side by side", f"{count(len(audits), 'model')}; bars: 95 % intervals; dashed: thresholds")
    return figure


def _panel(axes: Axes, metric: Metric, audits: Mapping[str, Audit], cuts: Cuts) -> None:
    numbers = [_scaled(metric.get(audit), metric.scale) for audit in audits.values()]
    dots(axes, numbers, _colours(len(numbers)), [True] * len(numbers))
    absent(axes, numbers)
    most = getattr(cuts, metric.cut) / metric.scale if metric.cut else None
    if most is not None:
        limit(axes, most, metric.cut)
    low, high = ends(numbers)
    every = [*low[np.isfinite(low)], *high[np.isfinite(high)], *([most] if most is not None else [])]
    span = log_span(every)
    if span is not None and min(every) > 0 and max(every) > 20 * min(every):
        log_axis(axes, *span, x=True, most=5)
    else:
        axes.margins(x=0.15)
        axes.locator_params(axis="x", nbins=4)
    ruled(axes)
    finish(axes, metric.unit, size=10)
    better = "more is better" if metric.more_is_better else "less is better"
    axes.set_title(f"{capital(metric.name)} ({better})", loc="left", fontsize=10, color=INK)


def _scaled(number: Number, scale: float) -> Number:
    def part(value: float | None) -> float | None:
        return None if value is None else value / scale

    return Number(part(number.value), part(number.low), part(number.high), number.why)


def _colours(n: int) -> Sequence[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(n)]
