"""Layers down, steps across: the picture of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from learnscope.findings.gather import Floats, Grid, Series
from learnscope.findings.words import count
from learnscope.report.style import (
    BROKEN,
    COLOURS,
    INK,
    ZERO,
    finish,
    log_ticks,
    maybe_log,
    new_figure,
    plain,
    shade_broken,
    step_edges,
    whole_steps,
)

MAX_COLUMNS = 400
"""Columns beyond which neighbouring measurements share one: a screen has no more to give them."""
ROW = 0.26
"""Inches for a layer, while there are few enough for every one to be named."""


@dataclass(frozen=True)
class Cells:
    """What is drawn: `edges` are in steps, masks are over columns (down) and layers (across)."""

    edges: Floats
    values: Floats
    zero: NDArray[np.bool_]
    broken: NDArray[np.bool_]
    per_column: int


def cells(grid: Grid, max_columns: int = MAX_COLUMNS) -> Cells:
    """The columns to draw. Too many are averaged geometrically; a column is broken if any of its cells is."""
    size = math.ceil(len(grid.steps) / max_columns)
    starts = np.arange(0, len(grid.steps), size)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(grid.values > 0, np.log10(grid.values), np.nan)
    known = np.isfinite(logs)
    sums = np.add.reduceat(np.where(known, logs, 0.0), starts, axis=0)
    counts = np.add.reduceat(known.astype(np.int64), starts, axis=0)
    values = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=values, where=counts > 0)
    zero = np.logical_or.reduceat(grid.values == 0, starts, axis=0) & (counts == 0)
    broken = np.logical_or.reduceat(grid.broken, starts, axis=0)
    all_edges = step_edges(grid.steps)
    edges = np.append(all_edges[starts], all_edges[-1])
    return Cells(edges, 10**values, zero & ~broken, broken, size)


def heatmap(grid: Grid, title: str, quantity: str, loss: Series | None = None) -> Figure:
    """The grid in colour, with the loss above it on the same steps if there is one."""
    drawn = cells(grid)
    rows = len(grid.scopes)
    body = min(max(ROW * rows, 1.4), 8.5)
    with_loss = loss is not None and len(loss.finite) > 1 and len(grid.steps) > 1
    figure = new_figure(body + (3.1 if with_loss else 1.9))
    if with_loss and loss is not None:
        top, axes = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, body])
        _strip(top, loss, title, _facts(grid, drawn))
        finish(axes, x="step")
    else:
        axes = figure.subplots()
        finish(axes, title, _facts(grid, drawn), x="step")
    _paint(figure, axes, drawn, quantity, body)
    _name_layers(axes, grid.scopes, body)
    if len(grid.steps) <= 12:
        axes.set_xticks(grid.steps, [f"{step:,}" for step in grid.steps])
    else:
        whole_steps(axes)
    axes.set_xlim(drawn.edges[0], drawn.edges[-1])
    return figure


def _facts(grid: Grid, drawn: Cells) -> str:
    n, first, last = len(grid.steps), int(grid.steps[0]), int(grid.steps[-1])
    at = f"step {first:,}" if n == 1 else f"{count(n, 'measurement')}, steps {first:,} to {last:,}"
    merged = f"; a column is the geometric mean of {drawn.per_column}" if drawn.per_column > 1 else ""
    return f"{count(len(grid.scopes), 'layer')}, {at}{merged}"


def _strip(axes: Axes, loss: Series, title: str, facts: str) -> None:
    """The training loss in small, to read the colours by."""
    shown = loss.finite
    axes.plot(shown.steps, shown.values, color=COLOURS[0], linewidth=1.2)
    shade_broken(axes, loss)
    maybe_log(axes, [shown.values], most=4)
    finish(axes, title, facts, y="loss")
    axes.tick_params(labelbottom=False, length=0)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.8)


def _paint(figure: Figure, axes: Axes, drawn: Cells, quantity: str, height: float) -> None:
    rows = np.arange(drawn.values.shape[1] + 1)
    few = drawn.values.size <= 600
    mesh_style = {"edgecolors": "white", "linewidth": 0.8} if few else {"edgecolors": "none"}
    finite = drawn.values[np.isfinite(drawn.values)]
    if finite.size:
        low, high = _limits(finite)
        mesh = axes.pcolormesh(
            drawn.edges, rows, np.ma.masked_invalid(drawn.values.T), cmap="viridis", norm=LogNorm(low, high),
            rasterized=True, **mesh_style,
        )  # fmt: skip
        beyond = (finite.min() < low, finite.max() > high)
        extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
        ticks = log_ticks(low, high)
        bar = figure.colorbar(
            mesh, ax=axes, extend=extend, pad=0.015, fraction=0.035, aspect=max(height / 0.2, 12), ticks=ticks
        )
        bar.ax.set_yticklabels([plain(tick) for tick in ticks])
        bar.minorticks_off()
        bar.set_label(quantity, fontsize=10, color=INK)
        bar.ax.tick_params(labelsize=9, which="both", colors=INK)
        bar.outline.set_visible(False)
    marks = [(drawn.zero, ZERO, "exactly zero"), (drawn.broken, BROKEN, "NaN or infinite")]
    shown = []
    for mask, colour, name in marks:
        if mask.any():
            flat = np.ma.masked_where(~mask.T, np.ones(mask.T.shape))
            axes.pcolormesh(drawn.edges, rows, flat, cmap=ListedColormap([colour]), rasterized=True, **mesh_style)
            shown.append(Patch(color=colour, label=name))
    blank = ~(np.isfinite(drawn.values) | drawn.zero | drawn.broken)
    if blank.any():
        shown.append(Patch(facecolor="white", edgecolor="#AAAAAA", label="no value"))
    if shown:
        figure.legend(handles=shown, loc="outside lower center", ncols=3, fontsize=10, frameon=False)
    axes.set_ylim(len(rows) - 1, 0)


def _limits(finite: Floats) -> tuple[float, float]:
    """Colours for the middle 98 %: one burst must not make the rest one colour. At least a factor of 3."""
    low, high = (float(v) for v in np.quantile(finite, [0.01, 0.99]))
    if high < 3 * low:
        centre = math.sqrt(low * high)
        return centre / math.sqrt(3), centre * math.sqrt(3)
    return low, high


def _name_layers(axes: Axes, scopes: list[str], height: float) -> None:
    """Every layer's name, or every k-th where they would run into each other; a common beginning is said once."""
    prefix = common_prefix(scopes)
    every = math.ceil(len(scopes) * 0.2 / height)
    # the last layer is named as well, unless the name would touch its neighbour's
    places = list(range(0, len(scopes), every))
    if len(scopes) - 1 - places[-1] >= max(every - 1, 1):
        places.append(len(scopes) - 1)
    axes.set_yticks([place + 0.5 for place in places], [shorten(scopes[p][len(prefix) :]) for p in places])
    axes.tick_params(axis="y", length=0, labelsize=10 if every == 1 else 9)
    unnamed = f", 1 in {every} named" if every > 1 else ""
    axes.set_ylabel(f"layer{f' (in {prefix[:-1]})' if prefix else ''}{unnamed}", fontsize=11, color=INK)


def common_prefix(scopes: list[str]) -> str:
    """The modules that all names begin with.

    >>> common_prefix(["net.h.0", "net.h.1", "net.ln"]), common_prefix(["0", "10"])
    ('net.', '')
    """
    if len(scopes) < 2:
        return ""
    paths = [scope.split(".")[:-1] for scope in scopes]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    return "".join(f"{part}." for part in paths[0][:shared])


def shorten(name: str, limit: int = 30) -> str:
    """
    >>> shorten("encoder.block.attention.output.dense", 20)
    'encoder.b…tput.dense'
    """
    if len(name) <= limit:
        return name
    half = (limit - 1) // 2
    return f"{name[:half]}…{name[-(limit - 1 - half) :]}"
