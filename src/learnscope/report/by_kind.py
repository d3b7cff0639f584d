"""Figures that need no code of their own: a curve for a number of the model, a heatmap for a number of every layer."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from learnscope.quantities import Quantity
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import Grid, Series, as_grid, as_series, layers, series
from learnscope.reading.other_numbers import OtherNumber, other_numbers
from learnscope.reading.words import count
from learnscope.report.broken import breaks, patch
from learnscope.report.heatmap import ColourScale, heatmap, layer_types
from learnscope.report.layout import INK, Panel, head, new_figure, panels_on
from learnscope.report.lines import curve
from learnscope.report.style import COLOURS, DASHES, few_ticks, finish, legend
from learnscope.store.reader import RunReader

MOST, ACROSS = 12, 3
LINES = len(COLOURS) * len(DASHES)
"""Series that can be told apart on one pair of axes."""
HEATMAPS = 8
FILES = "layers-*.png"
"""The file names of these figures, by which those of an earlier report are removed."""


def other_figure(reader: RunReader) -> Figure | None:
    """Small multiples over the same steps, a name each, with a line for every combination of labels."""
    candidates: list[tuple[str, dict[str, Series]]] = []
    for number in other_numbers(reader, "model"):
        series_by_labels = {labels: as_series(rows) for labels, rows in number.by_labels().items()}
        curves = {key: values for key, values in series_by_labels.items() if len(values) > 1 and len(values.finite)}
        candidates += [(number.title, curves)] if curves else []
    if not candidates:
        return None
    shown = candidates[:MOST]
    columns = min(ACROSS, len(shown))
    down = math.ceil(len(shown) / columns)
    figure = new_figure(1.2 + 2.0 * down)
    broken = breaks(reader)
    grid = figure.subplots(down, columns, sharex=True, squeeze=False)
    for axes, (title, curves), lowest in panels_on(grid, shown):
        for place, (labels, values) in enumerate(list(curves.items())[:LINES]):
            colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS)]
            curve(axes, values, colour, labels, width=1.5, dash=dash, smooth=len(curves) == 1)
        few_ticks(axes, [values.finite.values for values in curves.values()], factor=1000)
        finish(axes, x="step" if lowest else "", size=10)
        axes.tick_params(labelbottom=lowest)
        axes.set_title(title if len(title) <= 40 else f"{title[:39]}…", loc="left", fontsize=10, color=INK)
        if len(curves) > 1:
            legend(axes)
        broken.shade(axes)
    if broken.spans:
        figure.legend(handles=[patch(broken, 0.25)], loc="lower center", fontsize=10, frameon=False)
    left = len(candidates) - len(shown)
    head(figure, "Other numbers", count(len(shown), "number") + (f"; {left:,} more left out" if left else ""))
    return figure


def layer_panels(reader: RunReader) -> list[Panel]:
    """A heatmap for every name of kind layer that no other panel shows, one for each combination of its labels."""
    panels = []
    for number in other_numbers(reader, "layer"):
        for labels, rows in number.by_labels().items():
            grid = as_grid(rows, layers(reader))
            if np.isfinite(grid.values).any() or grid.broken.any():
                panels.append(_layer_panel(number, labels, grid))
    shown, left = panels[:HEATMAPS], len(panels) - HEATMAPS
    if left > 0:
        more = f"{count(left, 'more figure')} of this kind left out: `run.frame(kind='layer')` has the numbers."
        shown[-1] = replace(shown[-1], reading=f"{shown[-1].reading} {more}")
    files = Counter(panel.file for panel in shown)
    return [
        panel if files[panel.file] == 1 else replace(panel, file=f"{panel.file.removesuffix('.png')}-{place}.png")
        for place, panel in enumerate(shown, 1)
    ]


def _layer_panel(number: OtherNumber, labels: str, grid: Grid) -> Panel:
    title = f"{number.title} by layer" + (f" ({labels})" if labels else "")
    file = re.sub(r"[^\w.-]+", "-", f"layers-{number.title}-{labels}").strip("-")[:100]
    name = number.title.split(": ")[-1]
    meaning = number.quantity.meaning if number.quantity else name
    # above the colour bar there is room for a short name only
    above, rest = (name, meaning if number.quantity else "") if len(name) <= 10 else ("", meaning)
    return Panel(
        f"{file}.png", title, f"Layers from input to output, top to bottom, over the steps. The colour is {meaning}.",
        lambda reader: heatmap(
            grid, title, above, series(reader, Loss.loss), meaning=rest, breaks=breaks(reader),
            types=layer_types(reader), scale=_scale(number.quantity, grid),
        ),
    )  # fmt: skip


def _scale(quantity: Quantity | None, grid: Grid) -> ColourScale:
    """As declared; otherwise logarithmic where all numbers are positive and far apart."""
    finite = grid.values[np.isfinite(grid.values)]
    positive = len(finite) > 0 and finite.min() >= 0
    if quantity is not None:
        return "log" if quantity.scale == "log" and positive else "linear"
    far = positive and finite.max() > 50 * max(float(np.quantile(finite, 0.05)), 1e-300)
    return "log" if far else "linear"
