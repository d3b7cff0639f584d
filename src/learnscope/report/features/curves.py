"""Accuracy and loss on training and test data, and the features of layers, over the steps of a run."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.quantities.examples import Memorization
from learnscope.quantities.features import FeatureEvolution
from learnscope.reading.gather import Grid, grid
from learnscope.report.layout import head, new_figure, panels_on
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
