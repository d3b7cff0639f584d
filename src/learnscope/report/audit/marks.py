"""What figures of audits share: numbers with their intervals, thresholds, rows with names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.reading.audit_numbers import Number
from learnscope.reading.gather import Floats
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET
from learnscope.report.style import log_ticks, plain

LIMIT = "#B2182B"
"""The colour of thresholds."""
BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
"""What lies behind a number that stands on a line."""


def values(numbers: Sequence[Number]) -> Floats:
    return np.array([np.nan if n.value is None else n.value for n in numbers], dtype=np.float64)


def ends(numbers: Sequence[Number]) -> tuple[Floats, Floats]:
    """The ends of the intervals; the numbers themselves where there is none."""
    middle = values(numbers)
    low = np.array([np.nan if n.low is None else n.low for n in numbers], dtype=np.float64)
    high = np.array([np.nan if n.high is None else n.high for n in numbers], dtype=np.float64)
    return np.where(np.isnan(low), middle, low), np.where(np.isnan(high), middle, high)


def line(axes: Axes, x: Sequence[float], numbers: Sequence[Number], colour: str, label: str, style: str = "o-") -> None:
    """A line with a band for the intervals."""
    low, high = ends(numbers)
    middle = values(numbers)
    axes.plot(x, middle, style, color=colour, label=label, ms=4, lw=1.6)
    if (high > low).any():
        axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)


def dots(axes: Axes, numbers: Sequence[Number], colours: Sequence[str], filled: Sequence[bool]) -> None:
    """Numbers across, one to a row, with their intervals."""
    middle, (low, high) = values(numbers), ends(numbers)
    for row, (value, colour, full) in enumerate(zip(middle, colours, filled, strict=True)):
        if np.isfinite(value):
            axes.plot([low[row], high[row]], [row, row], color=colour, lw=1.6, solid_capstyle="butt")
            axes.plot([value], [row], "o", color=colour, mfc=colour if full else "white", ms=6)


def absent(axes: Axes, numbers: Sequence[Number], text: str = "n/a") -> None:
    """At the left of rows that have no number, a word instead."""
    for row, number in enumerate(numbers):
        if number.value is None:
            why = {"nan": "NaN", "inf": "infinite", "-inf": "infinite", "zero": "exactly 0"}.get(number.why or "", text)
            axes.annotate(why, (0, row), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                          va="center", fontsize=9, color=QUIET)  # fmt: skip


def limit(axes: Axes, value: float, label: str, *, across: bool = False) -> None:
    """A threshold as a dashed line."""
    draw = axes.axhline if across else axes.axvline
    draw(value, color=LIMIT, ls="--", lw=1.2, label=label)


def ruled(axes: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Guide lines behind the data."""
    axes.grid(axis=axis, color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)


def legend_below(figure: Figure, columns: int) -> None:
    """All that the panels have labelled, each once."""
    handles = {h.get_label(): h for axes in figure.axes for h in axes.get_legend_handles_labels()[0]}
    if handles:
        figure.legend(handles=list(handles.values()), loc="lower center", ncols=columns, fontsize=10, frameon=False)


def name_rows(axes: Axes, names: Sequence[str], room: int = 26) -> None:
    """Rows from top to bottom."""
    axes.set_yticks(range(len(names)), [shorten(name, room) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def without_stem(names: Sequence[str]) -> list[str]:
    """Names without the outermost module that most of them lie in, if they can still be told apart.

    >>> without_stem(["transformer.wte", "transformer.h.0", "transformer", "lm_head"])
    ['wte', 'h.0', 'transformer', 'lm_head']
    """
    stems = Counter(name.split(".")[0] for name in names if "." in name)
    if not stems:
        return list(names)
    stem, inside = stems.most_common(1)[0]
    short = [name.removeprefix(f"{stem}.") for name in names]
    return short if 2 * inside >= len(names) and len(set(short)) == len(set(names)) else list(names)


def log_axis(axes: Axes, low: float, high: float, *, x: bool = False, most: int = 6) -> None:
    """A logarithmic scale from low to high with ticks that can be read."""
    (axes.set_xscale if x else axes.set_yscale)("log")
    ticks = log_ticks(low, high, most)
    (axes.set_xticks if x else axes.set_yticks)(ticks, [plain(tick) for tick in ticks])
    axes.minorticks_off()
    (axes.set_xlim if x else axes.set_ylim)(low, high)


def log_span(numbers: Sequence[float], *also: float) -> tuple[float, float] | None:
    """From where to where a logarithmic scale goes; None if nothing is above 0."""
    known = [v for v in (*numbers, *also) if np.isfinite(v) and v > 0]
    if not known:
        return None
    low, high = min(known), max(known)
    wide = max((high / low) ** 0.06, 1.3)
    return low / wide, high * wide


def _bare(axes: Axes) -> None:
    """No frame, and no ticks that the layout would leave room for."""
    axes.set(xticks=[], yticks=[])
    axes.set_axis_off()


def message(axes: Axes, text: str) -> None:
    """In place of a picture, why there is none."""
    _bare(axes)
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=9, color=QUIET, wrap=True, transform=axes.transAxes)


def tile(axes: Axes, label: str, value: str, beside: str = "", colour: str = INK) -> None:
    """A number large, what it is above, what else to know below."""
    _bare(axes)
    place: dict[str, Any] = {"transform": axes.transAxes}
    axes.text(0, 0.96, label, fontsize=9.5, color=QUIET, va="top", **place)
    axes.text(
        0, 0.7, value, fontsize=17 if len(value) <= 22 else 12, fontweight="bold", color=colour, va="top", **place
    )
    axes.text(0, 0.02, beside, fontsize=9, color=QUIET, va="bottom", **place)
