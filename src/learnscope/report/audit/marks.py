"""What figures of audits share: numbers with their intervals, thresholds, named rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.reading.audit_numbers import Number
from learnscope.reading.gather import Floats
from learnscope.record import nonfinite
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET
from learnscope.report.style import log_scale

LIMIT = "#B2182B"
"""The colour of thresholds."""
BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
"""The box behind a number that is written on a line."""


def values(numbers: Sequence[Number]) -> Floats:
    return np.array([np.nan if n.value is None else n.value for n in numbers], dtype=np.float64)


def ends(numbers: Sequence[Number]) -> tuple[Floats, Floats]:
    """The ends of the intervals; the numbers themselves where there is none."""
    middle = values(numbers)
    low, high = values([Number(n.low) for n in numbers]), values([Number(n.high) for n in numbers])
    return np.where(np.isnan(low), middle, low), np.where(np.isnan(high), middle, high)


def line(axes: Axes, x: Sequence[float], numbers: Sequence[Number], colour: str, label: str) -> None:
    low, high = ends(numbers)
    axes.plot(x, values(numbers), "o-", color=colour, label=label, ms=4, lw=1.6)
    if (high > low).any():
        axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)


def dots(axes: Axes, numbers: Sequence[Number], colours: Sequence[str], filled: Sequence[bool]) -> None:
    """Numbers across, one to a row, with their intervals."""
    middle, (low, high) = values(numbers), ends(numbers)
    for row, (value, colour, full) in enumerate(zip(middle, colours, filled, strict=True)):
        if np.isfinite(value):
            axes.plot([low[row], high[row]], [row, row], color=colour, lw=1.6, solid_capstyle="butt")
            axes.plot([value], [row], "o", color=colour, mfc=colour if full else "white", ms=6)


def absent(axes: Axes, numbers: Sequence[Number]) -> None:
    """A word at the left of rows that have no number."""
    words = {"nan": "NaN", "inf": "infinite", "-inf": "infinite", "zero": "exactly 0"}
    for row, number in enumerate(numbers):
        if number.value is None:
            word = words.get(nonfinite(number.reason) or number.reason or "", "n/a")
            axes.annotate(word, (0, row), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                          va="center", fontsize=9, color=QUIET)  # fmt: skip


def limit(axes: Axes, value: float, label: str, *, across: bool = False) -> None:
    draw = axes.axhline if across else axes.axvline
    draw(value, color=LIMIT, ls="--", lw=1.2, label=label)


def legend_below(figure: Figure, columns: int) -> None:
    """A legend of all that the panels have labelled, each once."""
    handles = {h.get_label(): h for axes in figure.axes for h in axes.get_legend_handles_labels()[0]}
    if handles:
        figure.legend(handles=list(handles.values()), loc="lower center", ncols=columns, fontsize=10, frameon=False)


def name_rows(axes: Axes, names: Sequence[str], room: int = 26) -> None:
    axes.set_yticks(range(len(names)), [shorten(name, room) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def without_stem(names: Sequence[str]) -> list[str]:
    """Names without the outermost module that most of them are in, if they stay distinct.

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
    """A logarithmic scale from low to high with readable ticks."""
    log_scale(axes, low, high, x=x, most=most)
    (axes.set_xlim if x else axes.set_ylim)(low, high)


def log_span(numbers: Iterable[float], *also: float) -> tuple[float, float] | None:
    """The limits of a logarithmic scale; None if nothing is above 0."""
    positive = [v for v in (*numbers, *also) if np.isfinite(v) and v > 0]
    if not positive:
        return None
    low, high = min(positive), max(positive)
    wide = max((high / low) ** 0.06, 1.3)
    return low / wide, high * wide


def _bare(axes: Axes) -> None:
    """Remove the frame, and ticks that the layout would leave room for."""
    axes.set(xticks=[], yticks=[])
    axes.set_axis_off()


def message(axes: Axes, text: str) -> None:
    """The reason why there is no picture, in its place."""
    _bare(axes)
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=9, color=QUIET, wrap=True, transform=axes.transAxes)


def tile(axes: Axes, label: str, value: str, beside: str = "", colour: str = INK) -> None:
    """A large number with its label above and more facts below."""
    _bare(axes)
    place: dict[str, Any] = {"transform": axes.transAxes}
    large = 17 if len(value) <= 22 else 12
    axes.text(0, 0.96, label, fontsize=9.5, color=QUIET, va="top", **place)
    axes.text(0, 0.7, value, fontsize=large, fontweight="bold", color=colour, va="top", **place)
    axes.text(0, 0.02, beside, fontsize=9, color=QUIET, va="bottom", **place)
