"""The style of all figures, without changing matplotlib's global state."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from learnscope.reading.gather import Floats
from learnscope.report.layout import INK

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's colours, which can be distinguished with any colour vision. Vermilion marks what is not finite."""
Dash = Literal["-", "--", "-.", ":"]
DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
BROKEN, ZERO = "#D55E00", "#C4C4C4"


def finish(axes: Axes, x: str = "", y: str = "", size: float = 11) -> None:
    axes.set_facecolor("white")
    axes.set_xlabel(x, fontsize=size, color=INK)
    axes.set_ylabel(y, fontsize=size, color=INK)
    axes.tick_params(labelsize=size - 1, colors=INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#BBBBBB")


def guides(axes: Axes, axis: Literal["x", "y", "both"] = "y", colour: str = "#E6E6E6") -> None:
    """Light grid lines behind the data, at the ticks of `axis`."""
    axes.grid(axis=axis, color=colour, linewidth=0.8)
    axes.set_axisbelow(True)


def lined(axes: Axes, ticks: int = 9) -> None:
    """Horizontal grid lines, and whole numbers for steps."""
    guides(axes)
    whole_steps(axes, ticks)


def whole_steps(axes: Axes, ticks: int = 9) -> None:
    first, last = axes.dataLim.intervalx
    if first == last:  # a single step: other ticks would be rounded to the same number
        axes.set_xlim(first - 1, first + 1)
        axes.set_xticks([first], [f"{first:,.0f}"])
        return
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def plain(value: float) -> str:
    """A tick's number, with an exponent only if it is very large or small.

    >>> plain(0.05), plain(2000.0), plain(1e-6), plain(2e-6)
    ('0.05', '2,000', '10⁻⁶', '2·10⁻⁶')
    """
    if 1e-3 <= value < 1e5:
        return f"{value:,g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10**exponent:.2g}"
    # plain characters: mathtext's parser takes longer than all other labels of a figure
    return f"{'' if factor == '1' else f'{factor}·'}10{str(exponent).translate(_RAISED)}"


def log_ticks(low: float, high: float, most: int = 9) -> list[float]:
    """Ticks for a logarithmic scale: powers of ten if there are at least three, else multiples of them too."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks: list[float] = []
    for digits in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 6, 8), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [d * 10.0**k for k in range(first, last + 1) for d in digits if low <= d * 10.0**k <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: max(1, math.ceil(len(ticks) / most))]


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    return [float(tick) for tick in MaxNLocator(most).tick_values(low, high) if low <= tick <= high]


def step_edges(steps: NDArray[np.int64]) -> Floats:
    """Edges of cells, halfway between measured steps."""
    if len(steps) == 1:
        return np.array([steps[0] - 0.5, steps[0] + 0.5])
    middle = (steps[1:] + steps[:-1]) / 2
    first, last = steps[0] - (middle[0] - steps[0]), steps[-1] + (steps[-1] - middle[-1])
    return np.concatenate([[first], middle, [last]])


def maybe_log(axes: Axes, parts: list[Floats], factor: float = 50, most: int = 9) -> None:
    """A logarithmic scale if the largest number is at least `factor` times the smallest, and all are above 0."""
    values = np.concatenate(parts)
    if not len(values) or values.min() <= 0 or values.max() < factor * values.min():
        return
    log_scale(axes, float(values.min()), float(values.max()), most=most)


def log_scale(axes: Axes, low: float, high: float, *, x: bool = False, most: int = 9) -> None:
    """A logarithmic scale with readable ticks from low to high."""
    ticks = log_ticks(low, high, most)
    (axes.set_xscale if x else axes.set_yscale)("log")
    (axes.set_xticks if x else axes.set_yticks)(ticks, [plain(tick) for tick in ticks])
    axes.minorticks_off()


def few_ticks(axes: Axes, parts: list[Floats], factor: float) -> None:
    """For small axes: `lined` and `maybe_log` with four ticks."""
    lined(axes, ticks=4)
    maybe_log(axes, parts, factor, most=4)
    if axes.get_yscale() == "linear":
        axes.locator_params(axis="y", nbins=4)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=10, framealpha=0.8, edgecolor="none", loc="best")
