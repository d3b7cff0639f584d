"""Heatmaps and colour bars of shares, from 0 to 100 %."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from numpy.typing import NDArray

from learnscope.reading.gather import Floats
from learnscope.reading.words import percent
from learnscope.report.heatmap import colour_bar, name_rows, paint_means, tick_steps
from learnscope.report.style import finish, linear_ticks

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def painted_rows(
    axes: Axes, bar: Axes, steps: NDArray[np.int64], values: Floats, names: Sequence[str], height: float, *,
    row: str, what: str, most: float | None = 1.0,
) -> str:  # fmt: skip
    """A heatmap of shares, a row for each name, with its colour bar; returns what the heading says of its rows.

    Colours go from 0 to `most`, or to the largest share.
    """
    mesh, size = paint_means(axes, steps, values, vmin=0, vmax=most)
    finish(axes, x="step", y=row)
    unnamed = name_rows(axes, names, height)
    tick_steps(axes, steps)
    share_bar(mesh, bar, what, QUARTERS if most else linear_ticks(0, mesh.get_clim()[1], 5))
    return unnamed + (f"; a column is the mean of {size}" if size > 1 else "")


def share_bar(mesh: ScalarMappable, bar: Axes, what: str, ticks: Sequence[float] = QUARTERS) -> None:
    figure = bar.get_figure()
    assert isinstance(figure, Figure)
    colour_bar(figure, mesh, bar, what, ticks, names=[percent(tick) for tick in ticks])
