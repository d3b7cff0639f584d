"""Over the steps: accuracy and loss on training and test data, features of layers, dead and saturated units."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from learnscope.quantities.examples import Memorization
from learnscope.quantities.features import Activations, FeatureEvolution
from learnscope.reading.gather import Grid, grid
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
from learnscope.report.layout import INK, head, margins, new_figure, panels_on
from learnscope.report.shares import share_bar
from learnscope.report.style import COLOURS, DASHES, finish, legend, lined, maybe_log
from learnscope.store.reader import RunReader

NUMBERS = {
    "silhouette of the classes": FeatureEvolution.silhouette,
    "accuracy of a linear probe": FeatureEvolution.linear_probe,
    "effective rank": FeatureEvolution.effective_rank,
    "CKA with the first measurement": FeatureEvolution.cka_first,
}
MOST = len(COLOURS) * len(DASHES)
"""Most layers: each has its own colour and dash."""


def memorization_figure(reader: RunReader) -> Figure | None:
    grids = {q.name: grid(reader, q, kind="split") for q in (Memorization.accuracy, Memorization.loss)}
    if not grids["loss"]:
        return None
    shown = {name: splits for name, splits in grids.items() if np.isfinite(splits.values).any()}
    figure = new_figure(1.2 + 2.6 * len(shown))
    head(figure, "Training and test data", "both in eval mode, on the examples that the session keeps of each")
    rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)
    for axes, (name, splits), lowest in panels_on(rows, list(shown.items())):
        _lines(axes, splits)
        if name == "loss":
            maybe_log(axes, [splits.values[np.isfinite(splits.values)]])
        finish(axes, "step" if lowest else "", name)
        lined(axes)
        legend(axes)
    return figure


def features_figure(reader: RunReader) -> Figure | None:
    grids = {name: grid(reader, quantity) for name, quantity in NUMBERS.items()}
    shown = {name: layers for name, layers in grids.items() if np.isfinite(layers.values).any()}
    if not shown:
        return None
    layers = next(iter(shown.values())).scopes
    figure = new_figure(1.4 + 2.7 * ((len(shown) + 1) // 2))
    more = f"; {MOST} of {len(layers)} layers" if len(layers) > MOST else ""
    head(figure, "Features by layer", f"on the same holdout examples every time{more}")
    rows = figure.subplots((len(shown) + 1) // 2, min(2, len(shown)), squeeze=False)
    for axes, name, _ in panels_on(rows, list(shown)):
        _lines(axes, shown[name])
        finish(axes, "step", name)
        lined(axes, 5)
    legend(rows[0, 0])
    return figure


def _lines(axes: Axes, shown: Grid) -> None:
    for place, scope in enumerate(shown.scopes[:MOST]):
        finite = shown.of(scope).finite
        axes.plot(
            finite.steps, finite.values, color=COLOURS[place % len(COLOURS)], label=scope,
            linestyle=DASHES[place // len(COLOURS)], marker="o" if len(finite) < 15 else "", markersize=4,
        )  # fmt: skip


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
