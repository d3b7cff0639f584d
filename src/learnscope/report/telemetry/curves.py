"""Curves of a telemetry figure, with gaps where values are missing, and a linear or logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from learnscope.reading.gather import Floats
from learnscope.report.instances import at_foot, log_axis, log_foot
from learnscope.report.layout import INK, QUIET
from learnscope.report.style import Dash, lined, maybe_log
from learnscope.report.telemetry.data import Telemetry, medians, thinned

DECADES = 100
"""The scale is logarithmic if the largest number is more than so many times the smallest."""
DOTS, MANY = 60, 300
"""Up to `DOTS` points each has a mark; a curve of more than `MANY` is drawn thin, with medians over it."""
MEDIANS = 100


@dataclass(frozen=True)
class Line:
    label: str
    values: Floats
    colour: str
    dash: Dash = "-"
    width: float = 1.8
    noisy: bool = True
    """Whether it is smoothed by medians when it is long."""


def median_size(t: Telemetry) -> int:
    """How many collections share a median; 0 if there are few enough to draw all."""
    return -(-len(t.steps) // MEDIANS) if len(t.steps) > MANY else 0


def draw_lines(
    axes: Axes, t: Telemetry, lines: Sequence[Line], small: bool, *, scale: bool = True, zeros: bool = False
) -> None:
    """Draw curves. With `scale` the axis may be logarithmic; with `zeros` it then has zeros at its foot."""
    parts = [line.values[np.isfinite(line.values)] for line in lines]
    values = np.concatenate(parts) if parts else np.empty(0)
    if not len(values):
        axes.text(0.5, 0.5, "no value was measured", color=QUIET, fontsize=10, ha="center", va="center",
                  transform=axes.transAxes)  # fmt: skip
        first, last = float(t.steps[0]), float(t.steps[-1])
        axes.update_datalim([(first, 0.0), (last, 0.0)])
        axes.set_xlim((first, last) if first < last else (first - 1, first + 1))
        axes.set_yticks([])
        return
    above = values[values > 0]
    wide = scale and len(above) and values.min() >= 0 and above.max() > DECADES * above.min()
    foot = log_foot(parts) if wide and zeros and (values == 0).any() else None
    for line in lines:
        _draw_line(axes, t, line, foot, small)
    lined(axes, ticks=4 if small else 9)
    if foot is not None:
        log_axis(axes, "y", parts, foot)
    elif wide:
        maybe_log(axes, parts, factor=DECADES, most=4 if small else 9)
    if axes.get_yscale() == "linear":
        tiny = float(np.abs(values).max()) < 1e-3
        axes.locator_params(axis="y", nbins=4 if small else 6)
        # the same notation for all ticks: 0.0001 looks smaller than 5e-05 at a glance
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1e}" if value and tiny else f"{value:,.10g}")
    mark_epochs(axes, t)


def _draw_line(axes: Axes, t: Telemetry, line: Line, foot: float | None, small: bool) -> None:
    values = at_foot(line.values, foot)
    size = median_size(t) if line.noisy else 0
    steps, shown = thinned(t.steps, values)
    mark = "o" if not small and np.isfinite(shown).sum() <= DOTS else ""
    axes.plot(
        steps, shown, color=line.colour, linestyle="-" if size else line.dash, marker=mark, markersize=4,
        linewidth=0.6 if size else line.width, alpha=0.35 if size else 1.0, label="" if size else line.label,
    )  # fmt: skip
    if size:
        axes.plot(
            *medians(t.steps, values, size), color=line.colour, linestyle=line.dash, linewidth=line.width,
            label=line.label,
        )  # fmt: skip
    known = np.isfinite(shown)
    isolated = known & ~np.append(known[1:], False) & ~np.append(False, known[:-1])
    if isolated.any():  # a point between two gaps has no line
        axes.plot(steps[isolated], shown[isolated], "o", color=line.colour, markersize=4 if small else 5)


def mark_epochs(axes: Axes, t: Telemetry, *, over: bool = False) -> None:
    """Light lines where epochs begin, behind curves or (`over`) above cells, without changing the limits."""
    axes.add_collection(
        LineCollection(
            [[(x, 0.0), (x, 1.0)] for x in t.begins[:: t.every]], transform=axes.get_xaxis_transform(),
            colors=INK if over else "#D0D0D0", linewidths=0.8, zorder=2 if over else 0.8, alpha=0.5 if over else 1.0,
        ),
        autolim=False,
    )  # fmt: skip
