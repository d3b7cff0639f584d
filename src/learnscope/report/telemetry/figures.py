"""Figures of a telemetry table: one for each section, and an overview."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from learnscope.report.heatmap import beyond, colour_bar
from learnscope.report.instances import stretch
from learnscope.report.layout import INK, head, margins, new_figure, panels_on, save
from learnscope.report.style import finish, linear_ticks, whole_steps
from learnscope.report.telemetry.curves import median_size
from learnscope.report.telemetry.data import BATCH, GROUPED, HOLDOUT, LOGGED, OTHER, Telemetry, class_shares, prepared
from learnscope.report.telemetry.examples import examples
from learnscope.report.telemetry.panels import (
    X_LABEL,
    Panel,
    batch_panels,
    example_panel,
    group_panel,
    holdout_panels,
    number_panels,
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
"""Heading and y label, by file name."""
OVERVIEW, ACROSS = "overview", 3
MOST = 12
"""Most numbers of a section that a figure shows."""


def plot_telemetry(frame: pd.DataFrame, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the table of `read_telemetry` into `folder`: a PNG for every section of the table, and an overview.

    Returns the paths, the overview first; none for a table without rows. With `read_telemetry(logits=True)` there is
    also the margin of every held-out example. Figures of an earlier call that are not drawn again are removed.
    """
    t = prepared(frame)
    if not len(t.steps):
        return []
    target = Path(folder)
    figures = panels_of(t)
    written = [target / f"{name}.png" for name in ((OVERVIEW, *figures) if figures else ())]
    for path, (name, panels) in zip(written[1:], figures.items(), strict=True):
        save(section_figure(t, TITLES.get(name, (name, ""))[0], panels), path)
    if figures:
        save(overview(t, figures), written[0])
    for name in (OVERVIEW, *TITLES):
        if target / f"{name}.png" not in written:
            (target / f"{name}.png").unlink(missing_ok=True)
    return written


def panels_of(t: Telemetry) -> dict[str, list[Panel]]:
    """The panels of every figure that has some, by file name."""
    figures = {name: [group_panel(t, name, *TITLES[name])] for name in GROUPED if name in t.sections}
    held_out = examples(t)
    # as many classes as the logits have columns, else as the batches have labels; 0 if neither is known
    classes = held_out.classes if held_out is not None else len(class_shares(t))
    figures["holdout"] = holdout_panels(t, classes)
    figures["holdout_margin"] = [example_panel(t, held_out)] if held_out is not None else []
    figures["batch_stats"] = batch_panels(t)
    figures["logged"] = number_panels(t, LOGGED)
    figures["other"] = number_panels(t, OTHER)
    for section in t.sections:
        if section not in (*GROUPED, HOLDOUT, BATCH, LOGGED, OTHER):
            figures[_file_name(section, figures)] = number_panels(t, section)
    return {name: panels for name, panels in figures.items() if panels}


def _file_name(section: str, taken: Collection[str]) -> str:
    """A section's name as a file name that is not taken.

    >>> _file_name("my metric", []), _file_name("../x", []), _file_name("overview", []), _file_name("a b", ["a_b"])
    ('my_metric', 'x', 'overview_2', 'a_b_2')
    """
    name = re.sub(r"[^\w-]+", "_", section).strip("_") or "section"
    number = next(n for n in itertools.count(1) if (name if n == 1 else f"{name}_{n}") not in {OVERVIEW, *taken})
    return name if number == 1 else f"{name}_{number}"


def section_figure(t: Telemetry, title: str, panels: Sequence[Panel]) -> Figure:
    """The panels below each other; more than three as small multiples."""
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
        lowest = place == len(shown) - 1
        finish(axes, x=X_LABEL if lowest else "", y=panel.y)
        axes.tick_params(labelbottom=lowest)
        _tick_steps(axes, t, 9)
        beside = figure.add_subplot(spec[place, 1]) if bars else None
        if beside is not None and mesh is not None:
            ticks = linear_ticks(*mesh.get_clim())
            outside = beyond(np.ma.compressed(np.ma.asarray(mesh.get_array())), *mesh.get_clim())
            colour_bar(figure, mesh, beside, panel.bar, ticks, outside, [f"{tick:g}" for tick in ticks])
        elif beside is not None:
            beside.set_visible(False)
        if len(shown) > 1:
            axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
        if not panel.shared:
            _legend(axes, small=False)
    _group_legend(figure, shown)
    head(figure, title, "; ".join([*t.facts, *_medians(t, shown), *(fact for panel in shown for fact in panel.facts)]))
    return figure


def overview(t: Telemetry, figures: dict[str, list[Panel]]) -> Figure:
    shown = [panel for panels in figures.values() for panel in panels[:MOST]]
    left_out = sum(len(panels) for panels in figures.values()) - len(shown)
    return _small_multiples(t, "Telemetry", shown, left_out)


def _small_multiples(t: Telemetry, title: str, panels: Sequence[Panel], left_out: int) -> Figure:
    columns = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / columns)
    figure = new_figure(1.2 + 2.3 * down + 0.25 * _legend_rows(panels))
    grid = figure.subplots(down, columns, squeeze=False)
    first, last = float(t.steps[0]), float(t.steps[-1])
    for axes, panel, lowest in panels_on(grid, panels):
        panel.draw(axes, True)
        finish(axes, x=X_LABEL if lowest else "", size=10)
        axes.tick_params(labelbottom=lowest)
        if first < last:
            axes.set_xlim(first - 0.03 * (last - first), last + 0.03 * (last - first))
        _tick_steps(axes, t, 4)
        axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
        if not panel.shared:
            _legend(axes, small=True)
    _group_legend(figure, panels)
    more = [f"{left_out:,} more numbers left out"] if left_out else []
    head(figure, title, "; ".join([*t.facts, *_medians(t, panels), *more]))
    return figure


def _medians(t: Telemetry, panels: Sequence[Panel]) -> list[str]:
    size = median_size(t)
    drawn = size and any(line.noisy for panel in panels for line in panel.lines)
    return [f"bold: medians of {size:,} collections"] if drawn else []


def _tick_steps(axes: Axes, t: Telemetry, ticks: int) -> None:
    if len(t.steps) == 1:  # the only step: other ticks would be rounded to the same number
        axes.set_xticks([int(t.steps[0])], [f"{t.steps[0]:,}"])
    else:
        whole_steps(axes, ticks)


def _legend(axes: Axes, small: bool) -> None:
    """Above the curves, in room made for it."""
    names = axes.get_legend_handles_labels()[1]
    if names:
        columns = 1 if small else 3
        stretch(axes, "y", above=(0.12 if small else 0.1) * math.ceil(len(names) / columns))
        axes.legend(fontsize=8 if small else 10, framealpha=0.8, edgecolor="none", loc="upper left", ncols=columns)


def _entries(panels: Sequence[Panel]) -> dict[str, Line2D]:
    """The legend of the groups, one entry for each group of all panels."""
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
        columns = _columns(list(entries))
        figure.legend(handles=list(entries.values()), loc="lower center", ncols=columns, fontsize=10, frameon=False)
