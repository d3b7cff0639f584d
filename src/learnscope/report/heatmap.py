"""Layers down, steps across: the picture of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from learnscope.reading.gather import Floats, Grid, Series
from learnscope.reading.pyramid import thinned
from learnscope.reading.words import count
from learnscope.report.broken import Breaks, patch
from learnscope.report.layout import INK, head, margins, new_figure
from learnscope.report.style import (
    BROKEN,
    COLOURS,
    ZERO,
    finish,
    linear_ticks,
    log_ticks,
    maybe_log,
    plain,
    step_edges,
    whole_steps,
)
from learnscope.store.reader import RunReader

ColourScale = Literal["log", "linear"]

MAX_COLUMNS = 400
"""With more measurements, neighbouring ones share a column: a screen shows no more."""
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

    @property
    def blank(self) -> NDArray[np.bool_]:
        return ~(np.isfinite(self.values) | self.zero | self.broken)


def cells(grid: Grid, max_columns: int = MAX_COLUMNS, scale: ColourScale = "log") -> Cells:
    """The columns to draw. Too many are averaged, geometrically on a logarithmic scale; one broken cell breaks all."""
    averaged = grid.values
    if scale == "log":
        with np.errstate(divide="ignore", invalid="ignore"):
            averaged = np.where(grid.values > 0, np.log10(grid.values), np.nan)
    values, edges, size = column_means(averaged, grid.steps, max_columns)
    starts = np.arange(0, len(grid.steps), size)
    zero = np.logical_or.reduceat(grid.values == 0, starts, axis=0) & np.isnan(values)
    broken = np.logical_or.reduceat(grid.broken, starts, axis=0)
    return Cells(edges, 10**values if scale == "log" else values, zero & ~broken, broken, size)


def column_means(
    values: Floats, steps: NDArray[np.int64], max_columns: int = MAX_COLUMNS
) -> tuple[Floats, Floats, int]:
    """Means over neighbouring steps (down), their edges, and how many steps share a column. NaN without a value."""
    size = math.ceil(len(steps) / max_columns)
    starts = np.arange(0, len(steps), size)
    finite = np.isfinite(values)
    sums = np.add.reduceat(np.where(finite, values, 0.0), starts, axis=0)
    counts = np.add.reduceat(finite.astype(np.int64), starts, axis=0)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    edges = step_edges(steps)
    return means, np.append(edges[starts], edges[-1]), size


def paint_means(axes: Axes, steps: NDArray[np.int64], values: Floats, **style: Any) -> tuple[ScalarMappable, int]:
    """Cells on a linear scale, steps across and scopes down; also how many steps share a column."""
    means, edges, size = column_means(values, steps)
    style = {"cmap": "viridis", **cell_style(*means.shape), **style}
    mesh = axes.pcolormesh(edges, np.arange(means.shape[1] + 1), np.ma.masked_invalid(means.T), **style)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(means.shape[1], 0)
    return mesh, size


def heatmap(
    grid: Grid, title: str, quantity: str, loss: Series | None = None, *, meaning: str = "",
    breaks: Breaks | None = None, types: Mapping[str, str] | None = None, scale: ColourScale = "log",
) -> Figure:  # fmt: skip
    """The grid in colour, with the loss above it on the same steps if there is one.

    `quantity` stands above the colour bar, so it is short; `meaning` says the rest. `types` are the classes of
    the layers, for layers that have only numbers for names.
    """
    breaks = breaks or Breaks()
    drawn = cells(grid, scale=scale)
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
    legend = _paint(figure, axes, drawn, quantity, figure.add_subplot(spec[-1, 1]) if coloured else None, scale)
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
    what = f"colour: {' '.join(filter(None, (quantity, meaning)))}"
    mean = "geometric mean" if scale == "log" else "mean"
    merged = f"; a column is the {mean} of {drawn.per_column}" if drawn.per_column > 1 else ""
    rows = f"{count(len(grid.scopes), 'layer')}{f' of {common}' if common else ''}{unnamed}"
    head(figure, title, f"{rows}, {measured(grid.steps)}; {what}{merged}")
    return figure


def body_height(rows: int, row: float = ROW, most: float = 8.5) -> float:
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
    axes.plot(*thinned(shown.steps, shown.values), color=COLOURS[0], linewidth=1.2)
    breaks.shade(axes)
    maybe_log(axes, [shown.values], most=4)
    finish(axes, y="loss")
    axes.tick_params(labelbottom=False, length=0)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.8)


def _paint(
    figure: Figure, axes: Axes, drawn: Cells, quantity: str, beside: Axes | None, scale: ColourScale
) -> list[Patch]:
    """The cells, and a colour bar on the axes beside them; what a legend must explain of cells without a number."""
    rows = np.arange(drawn.values.shape[1] + 1)
    style = cell_style(*drawn.values.shape)
    if beside is not None:
        finite = drawn.values[np.isfinite(drawn.values)]
        norm, ticks, names = _colours(finite, scale)
        masked = np.ma.masked_invalid(drawn.values.T)
        mesh = axes.pcolormesh(drawn.edges, rows, masked, cmap="viridis", norm=norm, **style)
        colour_bar(figure, mesh, beside, quantity, ticks, beyond(finite, norm.vmin, norm.vmax), names)
    explained = paint_marks(axes, drawn, style)
    if drawn.blank.any():
        explained.append(Patch(facecolor="white", edgecolor="#AAAAAA", label="no value"))
    axes.set_ylim(len(rows) - 1, 0)
    return explained


def _colours(finite: Floats, scale: ColourScale) -> tuple[Any, list[float], list[str] | None]:
    """From numbers to colours, the ticks of the colour bar, and what they are called where that is not their number."""
    if scale == "log":
        low, high = limits(finite)
        return LogNorm(low, high), log_ticks(low, high), None
    low, high = (float(v) for v in np.quantile(finite, [0.01, 0.99]))
    if high <= low:  # one value: a scale around it
        low, high = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2
    ticks = linear_ticks(low, high, 5)
    return Normalize(low, high), ticks, [f"{tick:,.6g}" for tick in ticks]


def paint_marks(axes: Axes, drawn: Cells, style: Mapping[str, Any]) -> list[Patch]:
    """Cells that are zero or not finite, each kind in its colour; returns their legend."""
    shown = []
    for mask, colour, name in ((drawn.zero, ZERO, "exactly zero"), (drawn.broken, BROKEN, "NaN or infinite")):
        if mask.any():
            flat = np.ma.masked_where(~mask.T, np.ones(mask.T.shape))
            rows = np.arange(mask.shape[1] + 1)
            axes.pcolormesh(drawn.edges, rows, flat, cmap=ListedColormap([colour]), **style)
            shown.append(Patch(color=colour, label=name))
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


def beyond(values: Floats, low: float, high: float) -> str:
    """At which ends of a colour bar there are values outside it, in matplotlib's words."""
    outside = (bool((values < low).any()), bool((values > high).any()))
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get(outside, "neither")


def limits(finite: Floats) -> tuple[float, float]:
    """Colours for the middle 98 %: one burst must not make the rest one colour. At least a factor of 3."""
    low, high = (float(v) for v in np.quantile(finite, [0.01, 0.99]))
    if high < 3 * low:
        centre = math.sqrt(low * high)
        return centre / math.sqrt(3), centre * math.sqrt(3)
    return low, high


def layer_types(reader: RunReader) -> dict[str, str]:
    return dict((reader.manifest.get("model") or {}).get("layer_types") or {})


def layer_names(scopes: list[str], types: Mapping[str, str]) -> tuple[list[str], str]:
    """What to call the layers, and the modules that all of their names begin with.

    >>> layer_names(["net.0", "net.2"], {"net.0": "Linear", "net.2": "ReLU"}), layer_names(["0", "10"], {})
    ((['0 Linear', '2 ReLU'], 'net'), (['0', '10'], ''))
    """
    modules = zip(*(scope.split(".")[:-1] for scope in scopes), strict=False) if len(scopes) > 1 else ()
    shared = takewhile(lambda names: len(set(names)) == 1, modules)
    prefix = "".join(f"{names[0]}." for names in shared)
    names = {scope: scope[len(prefix) :] for scope in scopes}
    typed = {scope for scope, name in names.items() if scope in types and re.fullmatch(r"[\d.]+", name)}
    return [f"{name} {types[scope]}" if scope in typed else name for scope, name in names.items()], prefix[:-1]


def name_rows(axes: Axes, names: Sequence[str], height: float) -> str:
    """Every row's name, or every k-th where they would overlap, which the returned text says."""
    every = math.ceil(len(names) * 0.2 / height)
    # the last one is named as well, unless the name would touch its neighbour's
    places = list(range(0, len(names), every))
    if len(names) - 1 - places[-1] >= max(every - 1, 1):
        places.append(len(names) - 1)
    axes.set_yticks([place + 0.5 for place in places], [shorten(names[p]) for p in places])
    axes.tick_params(axis="y", length=0, labelsize=10 if every == 1 else 9)
    return f" (1 in {every} named)" if every > 1 else ""


def shorten(name: str, limit: int = 30) -> str:
    """
    >>> shorten("encoder.block.attention.output.dense", 20)
    'encoder.b…tput.dense'
    """
    if len(name) <= limit:
        return name
    half = (limit - 1) // 2
    return f"{name[:half]}…{name[-(limit - 1 - half) :]}"
