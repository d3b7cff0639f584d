"""Figures of a telemetry table: one for each of its sections, and an overview of all."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from learnscope.findings.words import count
from learnscope.report.heatmap import colour_bar
from learnscope.report.layout import INK, head, margins, new_figure, save
from learnscope.report.style import whole_steps
from learnscope.report.telemetry_data import BATCH, GROUPED, HOLDOUT, LOGGED, Telemetry, class_shares, prepared
from learnscope.report.telemetry_examples import Examples, examples
from learnscope.report.telemetry_panels import (
    Panel,
    batch_panels,
    example_panel,
    group_panel,
    holdout_panels,
    number_panels,
    style,
)

TITLES = {
    "gradient_norm": ("Gradient norm", "L2 norm of the gradient"),
    "weight_delta": ("Weight change between collections", "L2 distance moved"),
    "learning_rates": ("Learning rates", "learning rate"),
    "holdout": ("Held-out examples", ""),
    "holdout_margin": ("Held-out examples one by one", ""),
    "batch_stats": ("What the batches hold", ""),
    "logged": ("Logged by the loop", ""),
    "other": ("Other numbers", ""),
}
"""Heading and the name of the numbers, by the name of the file."""
OVERVIEW, ACROSS = "overview", 3
MOST = 12
"""Numbers of one section that figures show."""


def plot_telemetry(frame: pd.DataFrame, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw what `read_telemetry` gave into `folder`, a PNG for every section that is there and an overview.

    The paths of the files, the overview first; none for a table without rows. With `read_telemetry(logits=True)` there
    is also the margin of every held-out example. A figure of an earlier call that is no longer true is removed.
    """
    t = prepared(frame)
    if not len(t.steps):
        return []
    target = Path(folder)
    figures = {name: panels for name, panels in _figures(t).items() if panels}
    written = []
    if figures:
        save(overview(t, figures), target / f"{OVERVIEW}.png")
        written.append(target / f"{OVERVIEW}.png")
    for name, panels in figures.items():
        path = target / f"{_file_name(name)}.png"
        save(section_figure(t, TITLES.get(name, (name, ""))[0], panels), path)
        written.append(path)
    for name in (OVERVIEW, *TITLES):
        if target / f"{name}.png" not in written:
            (target / f"{name}.png").unlink(missing_ok=True)
    return written


def _file_name(section: str) -> str:
    """A section may have any name; a file may not."""
    return re.sub(r"[^\w.-]+", "_", section).strip(".") or "section"


def _figures(t: Telemetry) -> dict[str, list[Panel]]:
    """The panels of every figure, by the name of its file."""
    figures = {name: [group_panel(t, name, *TITLES[name])] for name in GROUPED if name in t.sections}
    found = examples(t)
    figures["holdout"] = holdout_panels(t, class_count(t, found))
    figures["holdout_margin"] = [example_panel(t, found)] if found is not None else []
    figures["batch_stats"] = batch_panels(t)
    figures["logged"] = number_panels(t, LOGGED)
    for section in t.sections:
        if section not in (*GROUPED, HOLDOUT, BATCH, LOGGED):
            figures[section or "other"] = number_panels(t, section)
    return figures


def class_count(t: Telemetry, found: Examples | None) -> int:
    """As many classes as the logits have columns, else as the batches have labels; 0 if nothing tells."""
    return found.classes if found is not None else len(class_shares(t))


def section_figure(t: Telemetry, title: str, panels: Sequence[Panel]) -> Figure:
    """The panels one below the other, or beside each other where they are many and small."""
    shown = panels[:MOST]
    if len(shown) > 3:
        return _small_multiples(t, title, shown, len(panels) - len(shown))
    figure = new_figure(1.3 + sum(panel.height for panel in shown) + 0.25 * _legend_rows(shown))
    bars = any(panel.bar for panel in shown)
    spec = figure.add_gridspec(len(shown), 2 if bars else 1, height_ratios=[panel.height for panel in shown])
    margins(figure).bar = bars
    for place, panel in enumerate(shown):
        axes = figure.add_subplot(spec[place, 0])
        mesh = panel.draw(axes, False)
        style(axes, panel, False, below=place == len(shown) - 1)
        whole_steps(axes)
        beside = figure.add_subplot(spec[place, 1]) if bars else None
        if beside is not None and mesh is not None:
            ticks = MaxNLocator(6).tick_values(*mesh.get_clim())
            inside = [tick for tick in ticks if mesh.get_clim()[0] <= tick <= mesh.get_clim()[1]]
            colour_bar(figure, mesh, beside, panel.bar, inside, names=[f"{tick:g}" for tick in inside])
        elif beside is not None:
            beside.set_visible(False)
        if len(shown) > 1:
            axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
        if not panel.shared:
            _legend(axes)
    _group_legend(figure, shown)
    head(figure, title, "; ".join([*t.facts, *(fact for panel in shown for fact in panel.facts)]))
    return figure


def overview(t: Telemetry, figures: dict[str, list[Panel]]) -> Figure:
    every = [panel for panels in figures.values() for panel in panels[:MOST]]
    left = sum(len(panels) for panels in figures.values()) - len(every)
    return _small_multiples(t, "Telemetry", every, left)


def _small_multiples(t: Telemetry, title: str, panels: Sequence[Panel], left: int) -> Figure:
    columns = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / columns)
    figure = new_figure(1.2 + 2.3 * down + 0.25 * _legend_rows(panels))
    grid = figure.subplots(down, columns, squeeze=False)
    reach = (float(t.steps[0]), float(t.steps[-1]))
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        panel = panels[place]
        panel.draw(axes, True)
        style(axes, panel, True, below=place + columns >= len(panels))
        if reach[0] < reach[1]:
            axes.set_xlim(reach[0] - 0.03 * (reach[1] - reach[0]), reach[1] + 0.03 * (reach[1] - reach[0]))
        whole_steps(axes, 4)
        axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
        if not panel.shared:
            _legend(axes, size=8)
    _group_legend(figure, panels)
    more = [f"{left:,} more numbers left out"] if left else []
    head(figure, title, "; ".join([*t.facts, count(len(panels), "panel"), *more]))
    return figure


def _legend(axes: Axes, size: float = 10) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=size, framealpha=0.8, edgecolor="none", loc="best")


def _entries(panels: Sequence[Panel]) -> dict[str, Line2D]:
    """One entry for every group, wherever it occurs."""
    lines = {line.label: line for panel in panels if panel.shared for line in panel.lines if line.label}
    entries = {}
    for label, line in lines.items():
        entries[label] = Line2D([], [], color=line.colour, linewidth=line.width, label=label)
        entries[label].set(linestyle=line.dash)
    return entries


def _columns(entries: Sequence[str]) -> int:
    return max(1, min(6, len(entries), 105 // (max(map(len, entries)) + 8)))


def _legend_rows(panels: Sequence[Panel]) -> int:
    entries = list(_entries(panels))
    return math.ceil(len(entries) / _columns(entries)) if entries else 0


def _group_legend(figure: Figure, panels: Sequence[Panel]) -> None:
    entries = _entries(panels)
    if entries:
        figure.legend(
            handles=list(entries.values()),
            loc="lower center",
            ncols=_columns(list(entries)),
            fontsize=10,
            frameon=False,
        )
