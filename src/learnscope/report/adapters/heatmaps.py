"""Adapters over a training: layers down, steps across, a panel for every type of module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from learnscope.reading.gather import Floats, Grid
from learnscope.reading.words import count
from learnscope.report.heatmap import (
    Cells,
    beyond,
    body_height,
    cell_style,
    cells,
    colour_bar,
    layer_names,
    limits,
    measured,
    name_rows,
    paint_marks,
    shorten,
)
from learnscope.report.layout import INK, head, new_figure
from learnscope.report.style import finish, linear_ticks, log_ticks, step_edges, whole_steps

ACROSS = 4
"""Most panels in a row."""
ROW = 0.16
"""Height of a layer, in inches."""
BAR = 0.07
"""Width of the colour bar, as a share of a panel's."""
DIGIT = 0.085
"""Width of a digit, in inches."""
PANEL_COLUMNS = 160
"""Most columns of a panel; if there are more, neighbouring measurements share one."""


@dataclass(frozen=True)
class Panel:
    """Modules of one type, by layer; modules outside the blocks share a panel, each under its own name."""

    title: str
    grid: Grid
    in_blocks: bool = True


@dataclass(frozen=True)
class Scale:
    """What the colours mean: `quantity` is the title of the bar, `meaning` is in the heading."""

    quantity: str
    meaning: str
    log: bool = True
    of: str = "module"
    """What a row of a panel is: a module, or a whole layer."""


def draw_heatmap(panels: Sequence[Panel], scale: Scale, title: str) -> Figure:
    """All panels with the same colour scale."""
    across = columns(len(panels))
    down = math.ceil(len(panels) / across)
    layers = max(len(panel.grid.scopes) for panel in panels)
    body = body_height(layers, ROW, 9.0 / down + 1.5)
    figure = new_figure(down * (body + 0.75) + 1.5)
    spec = figure.add_gridspec(down, across + 1, width_ratios=[1.0] * across + [BAR * across / 4])
    drawn = [_cells(panel.grid, scale) for panel in panels]
    norm, extend = _norm([cells.values for cells in drawn], scale)
    legend: dict[str, Patch] = {}
    unnamed = ""
    row_names = _row_names(panels, across)
    inner = [name for place, names in enumerate(row_names) if place % across for name in names]
    between = DIGIT * max(map(len, inner), default=0)
    for place, (panel, painted, names) in enumerate(zip(panels, drawn, row_names, strict=True)):
        axes = figure.add_subplot(spec[place // across, place % across])
        lowest = place + across >= len(panels)
        finish(axes, x="step" if lowest else "", y="layer" if names and panel.in_blocks else "", size=10)
        axes.set_title(shorten(panel.title, title_room(across)), loc="left", fontsize=10, color=INK)
        legend |= _paint(axes, painted, norm, across)
        _ticks(axes, panel.grid, across, between)
        if names:
            left_out = name_rows(axes, names, body)
            # no remark for numbers: anyone can see which are missing
            unnamed = left_out if left_out and not all(name.isdigit() for name in names) else unnamed
        else:
            axes.set_yticks([])
    if norm is not None:
        beside = figure.add_subplot(spec[:, -1])
        ticks = (log_ticks if scale.log else linear_ticks)(norm.vmin, norm.vmax)
        names_of = None if scale.log else [f"{tick:g}" for tick in ticks]
        colour_bar(figure, ScalarMappable(norm, "viridis"), beside, scale.quantity, ticks, extend, names_of)
    if legend:
        figure.legend(handles=list(legend.values()), loc="lower center", ncols=3, fontsize=10, frameon=False)
    head(figure, title, "; ".join(_facts(panels, drawn, scale, unnamed)))
    return figure


def columns(panels: int) -> int:
    """How many panels in a row, so that the rows are about equally full."""
    down = math.ceil(panels / ACROSS)
    return math.ceil(panels / down)


def title_room(across: int) -> int:
    """How many characters fit above a panel with `across` panels in a row."""
    return 90 // across


def _row_names(panels: Sequence[Panel], across: int) -> list[list[str]]:
    """The names of each panel's rows, none if its left neighbour has the same; short between two panels."""
    row_names = [layer_names(panel.grid.scopes, {})[0] for panel in panels]
    for place in range(len(panels)):
        if place % across:
            same = panels[place].grid.scopes == panels[place - 1].grid.scopes
            row_names[place] = [] if same else [shorten(name, 48 // across) for name in row_names[place]]
    return row_names


def _cells(grid: Grid, scale: Scale) -> Cells:
    """Geometric means on a logarithmic scale, as in any heatmap; every k-th measurement on a linear one."""
    if scale.log:
        return cells(grid, PANEL_COLUMNS)
    every = math.ceil(len(grid.steps) / PANEL_COLUMNS)
    shown = slice(len(grid.steps) - 1 - (len(grid.steps) - 1) // every * every, None, every)
    nothing = np.zeros(grid.values[shown].shape, dtype=bool)
    return Cells(step_edges(grid.steps[shown]), grid.values[shown], nothing, grid.broken[shown], every)


def _norm(values: Sequence[Floats], scale: Scale) -> tuple[Any, str]:
    """The colour scale of all panels (None without any number), and at which ends numbers lie outside it."""
    finite = np.concatenate([panel[np.isfinite(panel)] for panel in values])
    if not len(finite):
        return None, "neither"
    if scale.log:
        low, high = limits(finite)
    else:
        low, high = float(finite.min()), float(finite.max())
        low, high = (low, high) if high - low > 1e-9 * abs(high) else (low - 0.5, high + 0.5)
    return (LogNorm if scale.log else Normalize)(low, high), beyond(finite, low, high)


def _paint(axes: Axes, drawn: Cells, norm: Any, across: int) -> dict[str, Patch]:
    """Draw the cells of a panel; returns the legend of those without a number."""
    columns, layers = drawn.values.shape
    rows = np.arange(layers + 1)
    style = cell_style(math.ceil(columns * across / 2), layers)  # gaps look wider in a narrow panel
    if np.isfinite(drawn.values).any():
        shown = np.ma.masked_invalid(drawn.values.T)
        axes.pcolormesh(drawn.edges, rows, shown, cmap="viridis", norm=norm, **style)
    legend = {str(mark.get_label()): mark for mark in paint_marks(axes, drawn, style)}
    if drawn.blank.any():
        axes.set_facecolor("#FFFFFF")
        axes.patch.set(hatch="////", edgecolor="#DDDDDD", linewidth=0)
        legend["none"] = Patch(facecolor="white", edgecolor="#CCCCCC", hatch="////", label="no value")
    axes.set_ylim(len(rows) - 1, 0)
    axes.set_xlim(drawn.edges[0], drawn.edges[-1])
    return legend


def _ticks(axes: Axes, grid: Grid, across: int, between: float) -> None:
    """As many steps as fit below a panel; `between` is the gap to its neighbour in inches."""
    if len(grid.steps) == 1:
        axes.set_xticks(grid.steps, [f"{grid.steps[0]:,}"])
        return
    room = (8.0 / across - between) / ((len(f"{grid.steps[-1]:,}") + 2) * DIGIT)
    whole_steps(axes, max(min(int(room), 9), 1))


def _facts(panels: Sequence[Panel], drawn: Sequence[Cells], scale: Scale, unnamed: str) -> list[str]:
    blocks = list(dict.fromkeys(scope for panel in panels if panel.in_blocks for scope in panel.grid.scopes))
    common = layer_names(blocks, {})[1] if blocks else ""
    modules = sum(int((~np.isnan(panel.grid.values) | panel.grid.broken).any(0).sum()) for panel in panels)
    where = f" in {count(len(blocks), 'layer')}{f' of {common}' if common else ''}{unnamed}" if blocks else ""
    rows = f"{count(modules, 'module')}{where}" if scale.of == "module" else where.removeprefix(" in ")
    facts = [f"{rows}, {measured(panels[0].grid.steps)}", f"colour: {scale.meaning}"]
    first = any((panel.grid.values[0] == 0).any() for panel in panels)
    later = any((panel.grid.values[1:] == 0).any() for panel in panels)
    if scale.log and first and not later:
        facts.append("exactly zero at first, while the factor that it is multiplied by is zero")
    merged = drawn[0].per_column
    if merged > 1:
        facts.append(f"a column is {'the geometric mean of' if scale.log else 'one of'} {merged}")
    return facts
