"""Dead and saturated units, layers down and steps across."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from learnscope.reading.gather import Floats, Grid, grid
from learnscope.reading.words import count, percent
from learnscope.report.broken import breaks, patch
from learnscope.report.heatmap import (
    MAX_COLUMNS,
    body_height,
    cell_style,
    colour_bar,
    layer_names,
    measured,
    name_rows,
    tick_steps,
)
from learnscope.report.layout import INK, head, margins, new_figure
from learnscope.report.style import finish, step_edges
from learnscope.store.reader import RunReader

QUARTERS = (0, 0.25, 0.5, 0.75, 1)


def activation_figure(reader: RunReader) -> Figure | None:
    """The share of dead units above, of saturated ones below, on the same colours from 0 to 100 %."""
    dead = grid(reader, "Activations", "dead_share")
    if not dead or not np.isfinite(dead.values).any():
        return None
    saturated = grid(reader, "Activations", "saturated_share").aligned(dead)
    body = body_height(len(dead.scopes), most=5.0)
    figure = new_figure(2 * body + 2.3)
    spec = figure.add_gridspec(2, 2)
    margins(figure).bar = True
    types = dict((reader.manifest.get("model") or {}).get("layer_types") or {})
    names, common = layer_names(dead.scopes, types)
    broken = breaks(reader)
    starts = np.arange(0, len(dead.steps), math.ceil(len(dead.steps) / MAX_COLUMNS), dtype=np.int64)
    for row, (what, values) in enumerate((("dead", dead.values), ("saturated", saturated))):
        axes = figure.add_subplot(spec[row, 0])
        mesh = _paint(axes, dead, _means(values, starts), starts)
        finish(axes, x="step" if row else "", y="layer")
        unnamed = name_rows(axes, names, body)
        axes.set_title(what, loc="left", fontsize=10, color=INK)
        axes.tick_params(labelbottom=bool(row))
        broken.edge(axes)
    quarters = [percent(q) for q in QUARTERS]
    colour_bar(figure, mesh, figure.add_subplot(spec[:, 1]), "units", QUARTERS, names=quarters)
    legend = [patch(broken)] if broken.spans else []
    if not np.isfinite(dead.values).all():
        legend.append(Patch(facecolor="white", edgecolor="#AAAAAA", label="no value"))
    if legend:
        figure.legend(handles=legend, loc="lower center", ncols=2, fontsize=10, frameon=False)
    per = math.ceil(len(dead.steps) / len(starts))
    head(
        figure,
        "Dead and saturated units by layer",
        f"{count(len(dead.scopes), 'layer')}{f' of {common}' if common else ''}{unnamed}, {measured(dead.steps)}; "
        f"colour: share of the layer's units{f'; a column is the mean of {per}' if per > 1 else ''}",
    )
    return figure


def _means(values: Floats, starts: NDArray[np.int64]) -> Floats:
    """The mean of what was measured in each column of the picture; NaN where nothing was."""
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts, axis=0)
    counts = np.add.reduceat(known.astype(np.int64), starts, axis=0)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _paint(axes: Axes, over: Grid, means: Floats, starts: NDArray[np.int64]) -> ScalarMappable:
    edges = step_edges(over.steps)
    mesh = axes.pcolormesh(
        np.append(edges[starts], edges[-1]), np.arange(means.shape[1] + 1), np.ma.masked_invalid(means.T),
        cmap="viridis", vmin=0, vmax=1, **cell_style(*means.shape),
    )  # fmt: skip
    axes.set_ylim(means.shape[1], 0)
    tick_steps(axes, over.steps)
    axes.set_xlim(edges[0], edges[-1])
    return mesh
