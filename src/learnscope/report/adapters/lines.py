"""Adapters in lines: gradient norms of some layers among all, and final spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from learnscope.reading.gather import Floats, Grid
from learnscope.reading.words import count
from learnscope.report.adapters.heatmaps import BAR, columns, title_room
from learnscope.report.heatmap import colour_bar, layer_names, measured, shorten
from learnscope.report.layout import INK, QUIET, head, new_figure
from learnscope.report.style import BROKEN, COLOURS, DASHES, finish, lined, log_scale, log_ticks, plain

REST = "#C9CED6"
WIDER = 1.4
"""Factor by which a scale extends beyond its numbers."""
FEW = 30
"""With up to so many measurements, each has a marker."""


@dataclass(frozen=True)
class Lines:
    """Norms of every layer over the steps, and the layers to highlight."""

    title: str
    grid: Grid
    chosen: list[str]


def draw_comparison(panels: Sequence[Lines], title: str) -> Figure:
    """Panels below each other, one for each part; chosen layers in colour, the others in grey."""
    figure = new_figure(2.75 * len(panels) + 1.7)
    spec = figure.add_gridspec(len(panels), 1)
    handles: dict[str, Line2D] = {}
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(spec[place, 0])
        last = place == len(panels) - 1
        finish(axes, x="step" if last else "", y="‖g‖")
        axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
        handles |= _compared(axes, panel)
        lined(axes)
        axes.tick_params(labelbottom=last)
    figure.legend(handles=list(handles.values()), loc="lower center", ncols=4, fontsize=10, frameon=False)
    layers = list(dict.fromkeys(scope for panel in panels for scope in panel.grid.scopes))
    common = layer_names(layers, {})[1]
    where = f" of {common}" if common else ""
    head(figure, title, f"{count(len(layers), 'layer')}{where}, {measured(panels[0].grid.steps)}; "
         "‖g‖ of a layer is the root of the sum of its modules' squares")  # fmt: skip
    return figure


def _compared(axes: Axes, panel: Lines) -> dict[str, Line2D]:
    """The lines of a panel on a logarithmic scale, with exact zeros at its foot."""
    grid = panel.grid
    positive = grid.values[np.isfinite(grid.values) & (grid.values > 0)]
    zeros = bool((grid.values == 0).any())
    if not len(positive) and not zeros:
        axes.text(0.5, 0.5, "no number", transform=axes.transAxes, ha="center", color=QUIET)
        axes.set_yticks([])
        return _broken(axes, grid)
    low, high = (positive.min() / WIDER, positive.max() * WIDER) if len(positive) else (1.0, WIDER)
    foot = low / max(high / low, 10.0) ** 0.2  # zeros are drawn below the smallest number
    handles = _layers(axes, panel, np.where(grid.values == 0, foot, grid.values))
    axes.set_yscale("log")
    ticks = log_ticks(low, high, 6) if len(positive) else []
    labels = [plain(tick) for tick in ticks]
    if zeros:
        axes.axhline(foot, color=QUIET, linewidth=0.8, linestyle=":")
        ticks, labels = [foot, *ticks], ["0", *labels]
    axes.set_yticks(ticks, labels)
    axes.minorticks_off()
    axes.set_ylim(foot / WIDER if zeros else low, high)
    return handles | _broken(axes, grid)


def _layers(axes: Axes, panel: Lines, shown: Floats) -> dict[str, Line2D]:
    grid = panel.grid
    names = dict(zip(grid.scopes, layer_names(grid.scopes, {})[0], strict=True))
    dots: dict[str, Any] = {"marker": "o", "markersize": 3.0} if len(grid.steps) <= FEW else {}
    quiet = dots if len(grid.steps) == 1 else {}
    handles: dict[str, Line2D] = {}
    for column, scope in enumerate(grid.scopes):
        if scope not in panel.chosen:
            axes.plot(grid.steps, shown[:, column], color=REST, linewidth=0.7, zorder=1.5, **quiet)
    for number, scope in enumerate(panel.chosen):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        values = shown[:, grid.scopes.index(scope)]
        axes.plot(grid.steps, values, color=colour, linestyle=dash, linewidth=1.8, **dots)
        name = names[scope]
        label = f"layer {name}" if name.isdigit() else shorten(name)
        handles[scope] = Line2D([], [], color=colour, linestyle=dash, label=label)
    if len(panel.chosen) < len(grid.scopes):
        handles["rest"] = Line2D([], [], color=REST, label="other layers")
    return handles


def _broken(axes: Axes, grid: Grid) -> dict[str, Line2D]:
    steps = grid.steps[grid.broken.any(1)]
    if not len(steps):
        return {}
    axes.plot(steps, np.full(len(steps), 0.97), "x", color=BROKEN, transform=axes.get_xaxis_transform(), clip_on=False)
    return {"broken": Line2D([], [], color=BROKEN, marker="x", linestyle="", label="a layer's is NaN or infinite")}


def draw_spectra(panels: Mapping[str, Mapping[str, Floats]], step: int, title: str, of: str = "ΔW") -> Figure:
    """Singular values of every module at one step, a panel for each type; colours run from first to last layer."""
    across = columns(len(panels))
    down = math.ceil(len(panels) / across)
    figure = new_figure(down * 2.6 + 1.4)
    spec = figure.add_gridspec(down, across + 1, width_ratios=[1.0] * across + [BAR * across / 4])
    layers = list(dict.fromkeys(layer for spectra in panels.values() for layer in spectra))
    all_values = np.concatenate([values for spectra in panels.values() for values in spectra.values()])
    positive = all_values[all_values > 0]
    norm = Normalize(0, max(len(layers) - 1, 1))
    first: Axes | None = None
    for place, (name, spectra) in enumerate(panels.items()):
        axes = figure.add_subplot(spec[place // across, place % across], sharex=first, sharey=first)
        first = first or axes
        finish(axes, "index" if place + across >= len(panels) else "", "σ" if place % across == 0 else "", size=10)
        axes.set_title(shorten(name, title_room(across)), loc="left", fontsize=10, color=INK)
        for layer, values in spectra.items():
            colour = colormaps["viridis"](norm(layers.index(layer)))
            shown = np.where(values > 0, values, np.nan)
            axes.plot(np.arange(1, len(values) + 1), shown, color=colour, linewidth=1.0, marker="o", markersize=2.5)
        lined(axes, 5)
        axes.tick_params(labelleft=place % across == 0, labelbottom=place + across >= len(panels))
    assert first is not None
    if len(positive):
        log_scale(first, float(positive.min()), float(positive.max()), most=6)
    names, common = layer_names(layers, {})
    marked = sorted({0, len(layers) // 2, len(layers) - 1})
    if len(layers) > 1:
        colour_bar(figure, ScalarMappable(norm, "viridis"), figure.add_subplot(spec[:, -1]), "layer", marked,
                   names=[shorten(names[place], 12) for place in marked])  # fmt: skip
    zero = int((all_values == 0).sum())
    modules = sum(len(spectra) for spectra in panels.values())
    left_out = f"; not drawn: {count(zero, 'value')} of exactly 0" if zero else ""
    head(figure, title, f"{count(modules, 'module')}{f' of {common}' if common else ''} at step {step:,}; "
         f"σ: singular values of {of}, the largest first{left_out}")  # fmt: skip
    return figure
