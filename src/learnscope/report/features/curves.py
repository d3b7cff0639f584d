"""Training data beside test data, and the features of layers, over the steps of a run."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.reading.gather import Grid, grid
from learnscope.report.layout import head, new_figure
from learnscope.report.style import COLOURS, DASHES, finish, legend, lined, maybe_log
from learnscope.store.reader import RunReader

MEMORIZATION, FEATURES = "Memorization", "FeatureEvolution"
NUMBERS = {
    "silhouette": "silhouette of the classes", "linear_probe": "accuracy of a linear probe",
    "effective_rank": "effective rank", "cka_first": "CKA with the first measurement",
}  # fmt: skip
MOST = len(COLOURS) * len(DASHES)
"""Layers that lines can be told apart for."""


def memorization_figure(reader: RunReader) -> Figure | None:
    found = {name: grid(reader, MEMORIZATION, name, kind="split") for name in ("accuracy", "loss")}
    if not found["loss"]:
        return None
    shown = {name: one for name, one in found.items() if one.values.size and (one.values == one.values).any()}
    figure = new_figure(1.2 + 2.6 * len(shown))
    head(figure, "Training and test data", "both in eval mode, on the examples that the session keeps of each")
    rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, one) in zip(rows, shown.items(), strict=True):
        _lines(axes, one)
        if name == "loss":
            maybe_log(axes, [values[values == values] for values in one.values.T])
        finish(axes, "step" if axes is rows[-1] else "", name)
        lined(axes)
        legend(axes)
    return figure


def features_figure(reader: RunReader) -> Figure | None:
    found = {name: grid(reader, FEATURES, name) for name in NUMBERS}
    shown = {name: one for name, one in found.items() if (one.values == one.values).any()}
    if not shown:
        return None
    layers = next(iter(shown.values())).scopes
    figure = new_figure(1.4 + 2.7 * ((len(shown) + 1) // 2))
    more = f"; {MOST} of {len(layers)} layers" if len(layers) > MOST else ""
    head(figure, "Features by layer", f"on the same holdout examples every time{more}")
    grid_of_axes = figure.subplots((len(shown) + 1) // 2, min(2, len(shown)), squeeze=False).ravel()
    for axes, (name, one) in zip(grid_of_axes, shown.items(), strict=False):
        _lines(axes, one)
        finish(axes, "step", NUMBERS[name])
        lined(axes, 5)
    for axes in grid_of_axes[len(shown) :]:
        axes.set_visible(False)
    legend(grid_of_axes[0])
    return figure


def _lines(axes: Axes, one: Grid) -> None:
    for place, scope in enumerate(one.scopes[:MOST]):
        values = one.values[:, place]
        known = values == values
        axes.plot(
            one.steps[known], values[known], color=COLOURS[place % len(COLOURS)], label=scope,
            linestyle=DASHES[place // len(COLOURS)], marker="o" if known.sum() < 15 else "", markersize=4,
        )  # fmt: skip
