"""Batches: the noise of their gradients, and their classes."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import BatchStats
from learnscope.reading.gather import Floats, grid, labelled, series
from learnscope.reading.words import as_number, count, num, percent
from learnscope.report.broken import Breaks, breaks, patch
from learnscope.report.heatmap import body_height, measured
from learnscope.report.layout import figure_with_bar, head, new_figure
from learnscope.report.lines import curve, finished
from learnscope.report.shares import painted_rows
from learnscope.report.style import COLOURS, finish, lined, maybe_log
from learnscope.store.reader import RunReader

STACKED = len(COLOURS)
"""Classes up to which shares are stacked areas; more become a heatmap."""


def noise_figure(reader: RunReader) -> Figure | None:
    units = labelled(reader, GradientFlow.noise_scale, "unit")
    curves = {str(unit): series(reader, GradientFlow.noise_scale, unit=unit) for unit in units}
    curves = curves or {"": series(reader, GradientFlow.noise_scale)}
    shown = {unit: values for unit, values in curves.items() if len(values.finite)}
    if not shown:
        return None
    axes = new_figure(4.4).subplots()
    for number, (unit, values) in enumerate(shown.items()):
        curve(axes, values, COLOURS[number], unit if len(shown) > 1 else "", smooth=False)
    lined(axes)
    maybe_log(axes, [values.finite.values for values in shown.values()])
    n, finite = sum(map(len, curves.values())), sum(len(values.finite) for values in shown.values())
    last = next(reversed(shown.values())).finite
    facts = f"{count(n, 'measurement')}; {num(float(last.values[-1]))} at step {last.steps[-1]:,}"
    facts += "".join(f"; unit: {unit}" for unit in list(shown)[:1] if unit and len(shown) == 1)
    facts += f"; {n - finite:,} without a value" if finite < n else ""
    return finished(reader, axes, "noise scale", "Gradient noise scale", facts)


def class_figure(reader: RunReader) -> Figure | None:
    """The share of every class in the batches: stacked where the classes are few, else a heatmap."""
    shares = grid(reader, BatchStats.share, kind="class")
    if not shares:
        return None
    classes = sorted(shares.scopes, key=lambda name: (as_number(name), name))
    order = [shares.scopes.index(name) for name in classes]
    # a class that is not in a batch has no row: its share is 0
    values = np.nan_to_num(shares.values[:, order])
    few = len(classes) <= STACKED and len(shares.steps) > 1
    figure, notes = (_stacked if few else _coloured)(shares.steps, classes, values, breaks(reader))
    means = values.mean(axis=0)
    facts = f"{count(len(classes), 'class', 'classes')}, {measured(shares.steps)}"
    facts += f"; {percent(float(means.min()))} to {percent(float(means.max()))} each on average{notes}"
    head(figure, "Classes in the batches", facts)
    return figure


def _stacked(steps: NDArray[np.int64], classes: list[str], values: Floats, broken: Breaks) -> tuple[Figure, str]:
    figure = new_figure(4.4)
    axes = figure.subplots()
    areas = axes.stackplot(steps, values.T, colors=COLOURS, labels=classes, linewidth=0)
    lined(axes)
    axes.set_xlim(steps[0], steps[-1])
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    finish(axes, x="step", y="share of the targets")
    broken.edge(axes)
    handles = [*areas, *([patch(broken)] if broken.spans else [])]
    labels = [f"class {name}" for name in classes] + ([broken.label] if broken.spans else [])
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=10, frameon=False)
    return figure, ""


def _coloured(steps: NDArray[np.int64], classes: list[str], values: Floats, broken: Breaks) -> tuple[Figure, str]:
    body = body_height(len(classes), row=0.2, most=4.5)
    figure, axes, bar = figure_with_bar(body + 1.9)
    notes = painted_rows(axes, bar, steps, values, classes, body, row="class", what="share", most=None)
    broken.edge(axes)
    if broken.spans:
        figure.legend(handles=[patch(broken)], loc="lower center", fontsize=10, frameon=False)
    return figure, notes
