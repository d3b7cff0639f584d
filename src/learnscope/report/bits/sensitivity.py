"""How much every unit of weights minds being quantised alone: layers down, bits across, a panel for each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from learnscope.findings.bits.bit_widths import MEASURES
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import Number
from learnscope.reading.audit_parts import Sensitivity, Unit
from learnscope.reading.audit_words import on
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import NONFINITE
from learnscope.reading.words import count, num
from learnscope.report.audit.marks import values
from learnscope.report.heatmap import body_height, colour_bar, layer_names, limits, name_rows
from learnscope.report.layout import INK, head, new_figure
from learnscope.report.style import BROKEN, ZERO, finish, log_ticks
from learnscope.store.reader import RunReader

PARTS = {"attn": "attention", "mlp": "MLP", "embedding": "embedding", "head": "head", "other": "other"}
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
    every = np.concatenate([values(list(unit.cost.values())) for unit in part.units])
    positive = every[np.isfinite(every) & (every > 0)]
    spec = figure.add_gridspec(1, len(groups) + (1 if len(positive) else 0),
                               width_ratios=[1.0] * len(groups) + ([0.05] if len(positive) else []))  # fmt: skip
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
        beyond = {(True, True): "both", (True, False): "min", (False, True): "max"}
        extend = beyond.get((bool(positive.min() < low), bool(positive.max() > high)), "neither")
        beside = figure.add_subplot(spec[0, -1])
        colour_bar(figure, ScalarMappable(norm, "viridis"), beside, measure.upper(), log_ticks(low, high), extend)
    if legend:
        figure.legend(handles=list(legend.values()), loc="lower center", ncols=3, fontsize=10, frameon=False)
    head(figure, "Sensitivity of layers to bits", _facts(part, measure, unnamed))
    return figure


def _facts(part: Sensitivity, measure: str, unnamed: str) -> str:
    alone = (
        f"{MEASURES[measure]}{' in nats' if measure == 'kl' else ''} to the model itself when one unit alone has so "
    )
    return f"{alone}few bits; {count(len(part.units), 'unit')}{unnamed}{on(part.examples)}"


def grouped(units: Sequence[Unit]) -> list[Group]:
    """Parts that every block has side by side over the same rows; all other units in a panel of their own."""
    by_part = Counter((unit.part, unit.layer) for unit in units)
    blocks = [p for p in ("attn", "mlp") if any(u.part == p for u in units)
              and all(n == 1 for (part, _), n in by_part.items() if part == p)]  # fmt: skip
    layers = list(dict.fromkeys(unit.layer for unit in units if unit.part in blocks))
    found = [
        Group(PARTS[p], layers, {unit.layer: unit for unit in units if unit.part == p}) for p in blocks
    ]  # fmt: skip
    rest = {unit.name: unit for unit in units if unit.part not in blocks}
    if rest:
        found.append(Group("other units" if found else "units", list(rest), rest))
    return found


def paint(axes: Axes, group: Group, bits: Sequence[int], norm: LogNorm | None, *, written: bool) -> dict[str, Patch]:
    """The cells of a panel; what a legend must explain of those without a colour of the scale."""
    missing = Number(None, why="none")
    numbers = [[group.units[row].cost.get(b, missing) if row in group.units else missing for b in bits]
               for row in group.rows]  # fmt: skip
    grid = np.array([values(row) for row in numbers])
    x, y = np.arange(len(bits) + 1), np.arange(len(group.rows) + 1)
    style: dict[str, Any] = {"edgecolors": "white", "linewidth": 0.6 if len(group.rows) <= 60 else 0.0}
    shown = np.ma.masked_where(~(grid > 0), grid)
    if norm is not None and shown.count():
        axes.pcolormesh(x, y, shown, cmap="viridis", norm=norm, **style)
    broken = np.array([[n.why in NONFINITE for n in row] for row in numbers])
    legend = {}
    for mask, colour, name in ((grid == 0, ZERO, "exactly zero"), (broken, BROKEN, "NaN or infinite")):
        if mask.any():
            axes.pcolormesh(
                x, y, np.ma.masked_where(~mask, np.ones(mask.shape)), cmap=ListedColormap([colour]), **style
            )
            legend[name] = Patch(color=colour, label=name)
    if (np.isnan(grid) & ~broken).any():
        legend["none"] = Patch(facecolor="white", edgecolor="#AAAAAA", label="not measured")
    if written:
        _write(axes, grid, norm)
    axes.set_ylim(len(group.rows), 0)
    axes.set_xticks(x[:-1] + 0.5, [f"{b}" for b in bits])
    return legend


def _write(axes: Axes, grid: np.ndarray[tuple[int, ...], np.dtype[np.float64]], norm: LogNorm | None) -> None:
    for row, column in np.argwhere(grid > 0):
        value = float(grid[row, column])
        dark = norm is not None and float(norm(value)) < 0.6
        axes.text(column + 0.5, row + 0.5, num(value), ha="center", va="center", fontsize=7,
                  color="white" if dark else "black")  # fmt: skip
