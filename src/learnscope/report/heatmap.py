"""Layers down, steps across: the picture of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from learnscope.reading.gather import Floats, Grid, Series
from learnscope.reading.words import count
from learnscope.report.broken import Breaks, patch
from learnscope.report.layout import INK, head, margins, new_figure
from learnscope.report.style import BROKEN, COLOURS, ZERO, finish, log_ticks, maybe_log, plain, step_edges, whole_steps

MAX_COLUMNS = 400
"""Columns beyond which neighbouring measurements share one: a screen has no more to give them."""
GAPS = 60
"""Columns up to which cells are set apart by white lines (rows: half as many); more would be mostly lines."""
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


def heatmap(
    grid: Grid, title: str, quantity: str, loss: Series | None = None, *, meaning: str = "",
    breaks: Breaks | None = None, types: Mapping[str, str] | None = None,
) -> Figure:  # fmt: skip
    """The grid in colour, with the loss above it on the same steps if there is one.

    `quantity` stands above the colour bar, so it is short; `meaning` says the rest. `types` are the classes of
    the layers, for layers that have only numbers for names.
    """
    breaks = breaks or Breaks()
    drawn = cells(grid)
    body = body_height(len(grid.scopes))
    with_loss = loss is not None and len(loss.finite) > 1 and len(grid.steps) > 1
    figure = new_figure(body + (3.1 if with_loss else 1.9))
    coloured = bool(np.isfinite(drawn.values).any())
    spec = figure.add_gridspec(
        2 if with_loss else 1, 2 if coloured else 1, height_ratios=[1.1, body] if with_loss else [body]
    )
    margins(figure).bar = coloured
    top = figure.add_subplot(spec[0, 0]) if with_loss else None
    axes = figure.add_subplot(spec[-1, 0], sharex=top)
    finish(axes, x="step", y="layer")
    legend = _paint(figure, axes, drawn, quantity, figure.add_subplot(spec[-1, 1]) if coloured else None)
    names, common = layer_names(grid.scopes, types or {})
    unnamed = name_rows(axes, names, body)
    tick_steps(axes, grid.steps)
    axes.set_xlim(drawn.edges[0], drawn.edges[-1])
    if top is not None and loss is not None:
        _strip(top, loss, breaks)
    elif not drawn.broken.any():  # else the cells say it themselves
        breaks.edge(axes)
        legend += [patch(breaks)] if breaks.spans else []
    if legend:
        figure.legend(handles=legend, loc="lower center", ncols=3, fontsize=10, frameon=False)
    where = f" of {common}" if common else ""
    what = f"colour: {quantity}{f' {meaning}' if meaning else ''}"
    merged = f"a column is the geometric mean of {drawn.per_column}" if drawn.per_column > 1 else ""
    rows = f"{count(len(grid.scopes), 'layer')}{where}{unnamed}"
    head(figure, title, "; ".join(part for part in (f"{rows}, {measured(grid.steps)}", what, merged) if part))
    return figure


def body_height(rows: int, row: float = ROW, most: float = 8.5) -> float:
    """Inches for the rows of a heatmap."""
    return min(max(row * rows, 1.4), most)


def measured(steps: NDArray[np.int64]) -> str:
    n, first, last = len(steps), int(steps[0]), int(steps[-1])
    return f"step {first:,}" if n == 1 else f"{count(n, 'measurement')}, steps {first:,} to {last:,}"


def tick_steps(axes: Axes, steps: NDArray[np.int64]) -> None:
    """A tick at every measured step where they are few."""
    if len(steps) <= 12:
        axes.set_xticks(steps, [f"{step:,}" for step in steps])
    else:
        whole_steps(axes)


def _strip(axes: Axes, loss: Series, breaks: Breaks) -> None:
    """The training loss in small, to read the colours by."""
    shown = loss.finite
    axes.plot(shown.steps, shown.values, color=COLOURS[0], linewidth=1.2)
    breaks.shade(axes)
    maybe_log(axes, [shown.values], most=4)
    finish(axes, y="loss")
    axes.tick_params(labelbottom=False, length=0)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.8)


def _paint(figure: Figure, axes: Axes, drawn: Cells, quantity: str, beside: Axes | None) -> list[Patch]:
    """The cells, and a colour bar on the axes beside them; what a legend must explain of cells without a number."""
    rows = np.arange(drawn.values.shape[1] + 1)
    style = cell_style(*drawn.values.shape)
    if beside is not None:
        finite = drawn.values[np.isfinite(drawn.values)]
        low, high = limits(finite)
        mesh = axes.pcolormesh(
            drawn.edges, rows, np.ma.masked_invalid(drawn.values.T), cmap="viridis", norm=LogNorm(low, high), **style
        )
        beyond = (bool(finite.min() < low), bool(finite.max() > high))
        extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
        colour_bar(figure, mesh, beside, quantity, log_ticks(low, high), extend)
    marks = [(drawn.zero, ZERO, "exactly zero"), (drawn.broken, BROKEN, "NaN or infinite")]
    shown = []
    for mask, colour, name in marks:
        if mask.any():
            flat = np.ma.masked_where(~mask.T, np.ones(mask.T.shape))
            axes.pcolormesh(drawn.edges, rows, flat, cmap=ListedColormap([colour]), **style)
            shown.append(Patch(color=colour, label=name))
    blank = ~(np.isfinite(drawn.values) | drawn.zero | drawn.broken)
    if blank.any():
        shown.append(Patch(facecolor="white", edgecolor="#AAAAAA", label="no value"))
    axes.set_ylim(len(rows) - 1, 0)
    return shown


def cell_style(columns: int, rows: int) -> dict[str, Any]:
    few = columns <= GAPS and rows <= GAPS / 2
    return {"edgecolors": "white" if few else "none", "linewidth": 0.8 if few else 0.0, "rasterized": True}


def colour_bar(
    figure: Figure, mesh: ScalarMappable, beside: Axes, quantity: str, ticks: Sequence[float],
    extend: str = "neither", names: Sequence[str] | None = None,
) -> None:  # fmt: skip
    bar = figure.colorbar(mesh, cax=beside, extend=extend, ticks=list(ticks))
    bar.ax.set_yticklabels(names or [plain(tick) if tick > 0 else "0" for tick in ticks])
    bar.minorticks_off()
    bar.ax.set_title(quantity, fontsize=10, color=INK)
    bar.ax.tick_params(labelsize=9, which="both", colors=INK)
    bar.outline.set_visible(False)


def limits(finite: Floats) -> tuple[float, float]:
    """Colours for the middle 98 %: one burst must not make the rest one colour. At least a factor of 3."""
    low, high = (float(v) for v in np.quantile(finite, [0.01, 0.99]))
    if high < 3 * low:
        centre = math.sqrt(low * high)
        return centre / math.sqrt(3), centre * math.sqrt(3)
    return low, high


def layer_names(scopes: list[str], types: Mapping[str, str]) -> tuple[list[str], str]:
    """What to call the layers, and the modules that all of their names begin with.

    >>> layer_names(["net.0", "net.2"], {"net.0": "Linear", "net.2": "ReLU"})
    (['0 Linear', '2 ReLU'], 'net')
    """
    prefix = common_prefix(scopes)
    names = []
    for scope in scopes:
        name = scope[len(prefix) :]
        only_numbers = re.fullmatch(r"[\d.]+", name) is not None
        names.append(f"{name} {types[scope]}" if only_numbers and scope in types else name)
    return names, prefix[:-1]


def name_rows(axes: Axes, names: Sequence[str], height: float) -> str:
    """Every row's name, or every k-th where they would run into each other, which is said."""
    every = math.ceil(len(names) * 0.2 / height)
    # the last one is named as well, unless the name would touch its neighbour's
    places = list(range(0, len(names), every))
    if len(names) - 1 - places[-1] >= max(every - 1, 1):
        places.append(len(names) - 1)
    axes.set_yticks([place + 0.5 for place in places], [shorten(names[p]) for p in places])
    axes.tick_params(axis="y", length=0, labelsize=10 if every == 1 else 9)
    return f" (1 in {every} named)" if every > 1 else ""


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
