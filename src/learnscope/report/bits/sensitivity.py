"""How sensitive every unit is to being quantised alone: layers down, bits across, a panel for each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from learnscope.findings.bits.frontier import MEASURES
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import NONE
from learnscope.reading.audit_parts import Unit
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, num
from learnscope.record import nonfinite
from learnscope.report.audit.marks import values
from learnscope.report.heatmap import (
    Cells,
    beyond,
    body_height,
    colour_bar,
    layer_names,
    limits,
    name_rows,
    paint_marks,
)
from learnscope.report.layout import INK, head, new_figure
from learnscope.report.style import finish, log_ticks
from learnscope.store.reader import RunReader

PARTS = {"attn": "attention", "mlp": "MLP"}
"""Titles of the parts of a block."""
ROW = 0.23
WRITTEN = 40
"""Rows up to which cells have their numbers written in them."""


@dataclass(frozen=True)
class Group:
    """Units that share a panel, by the names of its rows."""

    title: str
    rows: Sequence[str]
    units: dict[str, Unit]


def sensitivity_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:  # noqa: ARG001 (no threshold)
    part = read_audit(reader).sensitivity
    if part is None or not part.units or not part.bits:
        return None
    groups = grouped(part.units)
    most = max(len(group.rows) for group in groups)
    body = body_height(most, ROW, 11.0)
    named = max(min(len(row), 30) for group in groups for row in layer_names(list(group.rows), {})[0])
    wide = 4.2 + 0.62 * len(part.bits) * len(groups)
    figure = new_figure(body + 2.1, min(max(wide, 7.5), 14.0) + 0.09 * named)
    costs = np.concatenate([values(list(unit.cost.values())) for unit in part.units])
    positive = costs[np.isfinite(costs) & (costs > 0)]
    widths = [1.0] * len(groups) + ([0.05] if len(positive) else [])
    spec = figure.add_gridspec(1, len(widths), width_ratios=widths)
    norm = LogNorm(*limits(positive)) if len(positive) else None
    legend: dict[str, Patch] = {}
    unnamed = ""
    for place, group in enumerate(groups):
        axes = figure.add_subplot(spec[0, place])
        legend |= paint(axes, group, part.bits, norm, written=most <= WRITTEN)
        axes.set_title(group.title, loc="left", fontsize=10, color=INK)
        finish(axes, "bits", size=10)
        if place == 0 or group.rows != groups[place - 1].rows:
            unnamed = name_rows(axes, layer_names(list(group.rows), {})[0], body) or unnamed
            if place:
                axes.yaxis.tick_right()
                axes.tick_params(axis="y", length=0)
        else:
            axes.set_yticks([])
    measure = part.judged_by
    if norm is not None:
        low, high = float(norm.vmin or 0), float(norm.vmax or 0)
        bar = figure.add_subplot(spec[0, -1])
        mesh = ScalarMappable(norm, "viridis")
        colour_bar(figure, mesh, bar, measure.upper(), log_ticks(low, high), beyond(positive, low, high))
    if legend:
        figure.legend(handles=list(legend.values()), loc="lower center", ncols=3, fontsize=10, frameon=False)
    facts = (
        f"{MEASURES[measure]}{' in nats' if measure == 'kl' else ''} to the model itself when one unit alone has so "
    )
    facts += f"few bits; {count(len(part.units), 'unit')}{unnamed}{part.on}"
    head(figure, "Sensitivity of layers to bits", facts)
    return figure


def grouped(units: Sequence[Unit]) -> list[Group]:
    """Parts that each block has once, side by side over the same rows; all other units in a panel of their own."""
    counts = Counter((unit.part, unit.layer) for unit in units)
    most = {part: max((n for (p, _), n in counts.items() if p == part), default=0) for part in PARTS}
    layers = list(dict.fromkeys(unit.layer for unit in units if most.get(unit.part) == 1))
    groups = [
        Group(title, layers, {unit.layer: unit for unit in units if unit.part == part})
        for part, title in PARTS.items()
        if most[part] == 1
    ]
    rest = {unit.name: unit for unit in units if most.get(unit.part) != 1}
    if rest:
        groups.append(Group("other units" if groups else "units", list(rest), rest))
    return groups


def paint(axes: Axes, group: Group, bits: Sequence[int], norm: LogNorm | None, *, written: bool) -> dict[str, Patch]:
    """Draw the cells of a panel; returns a legend of the colours that are not on the scale."""
    costs = {row: unit.cost for row, unit in group.units.items()}
    numbers = [[costs.get(row, {}).get(b, NONE) for b in bits] for row in group.rows]
    grid = np.array([values(row) for row in numbers])
    x, y = np.arange(len(bits) + 1.0), np.arange(len(group.rows) + 1)
    style: dict[str, Any] = {"edgecolors": "white", "linewidth": 0.6 if len(group.rows) <= 60 else 0.0}
    shown = np.ma.masked_where(~(grid > 0), grid)
    if norm is not None and shown.count():
        axes.pcolormesh(x, y, shown, cmap="viridis", norm=norm, **style)
    broken = np.array([[nonfinite(n.reason) is not None for n in row] for row in numbers])
    drawn = Cells(x, grid.T, (grid == 0).T, broken.T, 1)
    legend = {str(mark.get_label()): mark for mark in paint_marks(axes, drawn, style)}
    if drawn.blank.any():
        legend["none"] = Patch(facecolor="white", edgecolor="#AAAAAA", label="not measured")
    for row, column in np.argwhere(grid > 0) if written else ():
        value = float(grid[row, column])
        dark = norm is not None and float(norm(value)) < 0.6
        axes.text(column + 0.5, row + 0.5, num(value), ha="center", va="center", fontsize=7,
                  color="white" if dark else "black")  # fmt: skip
    axes.set_ylim(len(group.rows), 0)
    axes.set_xticks(x[:-1] + 0.5, [f"{b}" for b in bits])
    return legend
