"""Curves of a telemetry figure: over steps that go on from epoch to epoch, gaps as gaps, a scale that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from learnscope.findings.gather import Floats, Series
from learnscope.report.instances import at_foot, log_axis, log_foot
from learnscope.report.lines import curve
from learnscope.report.style import lined, maybe_log
from learnscope.report.telemetry_data import MOST_POINTS, Telemetry, thinned

DECADES = 100
"""Largest over smallest number from which a scale is logarithmic."""
SMOOTHED = 3
"""Curves up to which noisy ones get a running median."""
EPOCHS = 40
"""Vertical lines that axes show at most."""


@dataclass(frozen=True)
class Line:
    """One curve: its numbers and how it looks."""

    label: str
    values: Floats
    colour: str
    dash: str = "-"
    width: float = 1.8


def draw_lines(
    axes: Axes, t: Telemetry, lines: Sequence[Line], small: bool, *, scale: bool = True, zeros: bool = False
) -> None:
    """The curves; with `scale` logarithmic if they need it, then with `zeros` at the foot of it."""
    parts = [line.values[np.isfinite(line.values)] for line in lines]
    every = np.concatenate(parts) if parts else np.empty(0)
    above = every[every > 0]
    wide = scale and len(above) and every.min() >= 0 and above.max() > DECADES * above.min()
    foot = log_foot(parts) if wide and zeros and (every == 0).any() else None
    smooth = len(lines) <= SMOOTHED and len(t.steps) <= MOST_POINTS
    for line in lines:
        _draw_line(axes, t, line, foot, smooth)
    lined(axes, ticks=4 if small else 9)
    if foot is not None:
        log_axis(axes, "y", parts, foot)
    elif wide:
        maybe_log(axes, parts, factor=DECADES, most=4 if small else 9)
    if axes.get_yscale() == "linear":
        _plain_ticks(axes, float(np.abs(every).max()) if len(every) else 1.0, small)
    mark_epochs(axes, t)


def _draw_line(axes: Axes, t: Telemetry, line: Line, foot: float | None, smooth: bool) -> None:
    shown = at_foot(line.values, foot)
    steps, values = (t.steps, shown) if smooth else thinned(t.steps, shown)
    curve(
        axes, Series(steps, values, [None] * len(steps)), line.colour, line.label, smooth=smooth, markers=not smooth,
        dash=line.dash, width=line.width,
    )  # fmt: skip
    there = np.isfinite(values)
    alone = there & ~np.append(there[1:], False) & ~np.append(False, there[:-1])
    if alone.any():  # between two gaps there is no line to see
        axes.plot(steps[alone], values[alone], "o", color=line.colour, markersize=5)


def _plain_ticks(axes: Axes, top: float, small: bool) -> None:
    axes.locator_params(axis="y", nbins=4 if small else 6)
    # one way of writing for all ticks: 0.0001 above 5e-05 reads as the smaller one
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1e}" if value and top < 0.01 else f"{value:,.10g}")


def mark_epochs(axes: Axes, t: Telemetry, colour: str = "#C8C8C8") -> None:
    """Light lines where epochs begin, without changing what the axes show; every k-th where they are many."""
    shown = t.begins[:: -(-len(t.begins) // EPOCHS) or 1]
    axes.add_collection(
        LineCollection(
            [[(x, 0.0), (x, 1.0)] for x in shown], colors=colour, linewidths=0.8, zorder=0.8,
            transform=axes.get_xaxis_transform(),
        ),
        autolim=False,
    )  # fmt: skip
