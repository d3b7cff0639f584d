"""Heatmaps of dead and saturated units, by layer and step."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from learnscope.quantities.features import Activations
from learnscope.reading.gather import grid
from learnscope.reading.words import count
from learnscope.report.broken import breaks, patch
from learnscope.report.heatmap import (
    body_height,
    layer_names,
    layer_types,
    measured,
    name_rows,
    paint_means,
    tick_steps,
)
from learnscope.report.layout import INK, head, margins, new_figure
from learnscope.report.shares import share_bar
from learnscope.report.style import finish
from learnscope.store.reader import RunReader


def activation_figure(reader: RunReader) -> Figure | None:
    dead = grid(reader, Activations.dead_share)
    if not dead or not np.isfinite(dead.values).any():
        return None
    saturated = grid(reader, Activations.saturated_share).aligned(dead)
    body = body_height(len(dead.scopes), most=5.0)
    figure = new_figure(2 * body + 2.3)
    spec = figure.add_gridspec(2, 2)
    margins(figure).bar = True
    names, common = layer_names(dead.scopes, layer_types(reader))
    broken = breaks(reader)
    for row, (what, values) in enumerate((("dead", dead.values), ("saturated", saturated))):
        axes = figure.add_subplot(spec[row, 0])
        mesh, per_column = paint_means(axes, dead.steps, values, vmin=0, vmax=1)
        tick_steps(axes, dead.steps)
        finish(axes, x="step" if row else "", y="layer")
        unnamed = name_rows(axes, names, body)
        axes.set_title(what, loc="left", fontsize=10, color=INK)
        axes.tick_params(labelbottom=bool(row))
        broken.edge(axes)
    share_bar(mesh, figure.add_subplot(spec[:, 1]), "units")
    legend = [patch(broken)] if broken.spans else []
    if not np.isfinite(dead.values).all():
        legend.append(Patch(facecolor="white", edgecolor="#AAAAAA", label="no value"))
    if legend:
        figure.legend(handles=legend, loc="lower center", ncols=2, fontsize=10, frameon=False)
    layers = f"{count(len(dead.scopes), 'layer')}{f' of {common}' if common else ''}{unnamed}, {measured(dead.steps)}"
    merged = f"; a column is the mean of {per_column}" if per_column > 1 else ""
    head(figure, "Dead and saturated units by layer", f"{layers}; colour: share of the layer's units{merged}")
    return figure
