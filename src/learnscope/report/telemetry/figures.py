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
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from learnscope.report.heatmap import beyond, colour_bar
from learnscope.report.instances import stretch
from learnscope.report.layout import INK, head, margins, new_figure, panels_on, save
from learnscope.report.style import finish, linear_ticks, whole_steps
from learnscope.report.telemetry.curves import Line, median_size
from learnscope.report.telemetry.data import (
    GROUPED,
    LOGGED,
    OTHER,
    SECTIONS,
    Telemetry,
    class_shares,
    prepare_telemetry,
)
from learnscope.report.telemetry.examples import examples
from learnscope.report.telemetry.panels import (
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
X_LABEL = "global step"
MOST = 12
"""Most numbers of a section that a figure shows."""


def plot_telemetry(frame: pd.DataFrame, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the table of `read_telemetry` into `folder`: a PNG for every section of the table, and an overview.

    Returns the paths, the overview first; none for a table without rows. With `read_telemetry(logits=True)` there is
    also the margin of every held-out example. Figures of an earlier call that are not drawn again are removed.
    """
    t = prepare_telemetry(frame)
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
    figures["holdout_margin"] = [example_panel(held_out)] if held_out is not None else []
    figures["batch_stats"] = batch_panels(t)
    figures["logged"] = number_panels(t, LOGGED)
    figures["other"] = number_panels(t, OTHER)
    for section in t.sections:
        if section not in SECTIONS:
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
    figure = new_figure(1.3 + sum(panel.height for panel in shown) + 0.25 * _legend_size(shown)[1])
    bars = any(panel.bar for panel in shown)
    spec = figure.add_gridspec(len(shown), 2 if bars else 1, height_ratios=[panel.height for panel in shown])
    margins(figure).bar = bars
    for place, panel in enumerate(shown):
        mesh = _draw(figure.add_subplot(spec[place, 0]), t, panel, place == len(shown) - 1, titled=len(shown) > 1)
        beside = figure.add_subplot(spec[place, 1]) if bars else None
        if beside is not None and mesh is not None:
            ticks = linear_ticks(*mesh.get_clim())
            outside = beyond(np.ma.compressed(np.ma.asarray(mesh.get_array())), *mesh.get_clim())
            colour_bar(figure, mesh, beside, panel.bar, ticks, outside, [f"{tick:g}" for tick in ticks])
        elif beside is not None:
            beside.set_visible(False)
    _finish_figure(figure, t, title, shown, [fact for panel in shown for fact in panel.facts])
    return figure


def overview(t: Telemetry, figures: dict[str, list[Panel]]) -> Figure:
    shown = [panel for panels in figures.values() for panel in panels[:MOST]]
    left_out = sum(len(panels) for panels in figures.values()) - len(shown)
    return _small_multiples(t, "Telemetry", shown, left_out)


def _small_multiples(t: Telemetry, title: str, panels: Sequence[Panel], left_out: int) -> Figure:
    columns = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / columns)
    figure = new_figure(1.2 + 2.3 * down + 0.25 * _legend_size(panels)[1])
    for axes, panel, lowest in panels_on(figure.subplots(down, columns, squeeze=False), panels):
        _draw(axes, t, panel, lowest, small=True)
    _finish_figure(figure, t, title, panels, [f"{left_out:,} more numbers left out"] if left_out else [])
    return figure


def _draw(
    axes: Axes, t: Telemetry, panel: Panel, lowest: bool, *, small: bool = False, titled: bool = True
) -> ScalarMappable | None:
    mesh = panel.draw(axes, t, small)
    finish(axes, x=X_LABEL if lowest else "", y="" if small else panel.y, size=10 if small else 11)
    axes.tick_params(labelbottom=lowest)
    first, last = float(t.steps[0]), float(t.steps[-1])
    if small and first < last:
        axes.set_xlim(first - 0.03 * (last - first), last + 0.03 * (last - first))
    if len(t.steps) == 1:  # the only step: other ticks would be rounded to the same number
        axes.set_xticks([int(t.steps[0])], [f"{t.steps[0]:,}"])
    else:
        whole_steps(axes, 4 if small else 9)
    if titled:
        axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
    names = axes.get_legend_handles_labels()[1]
    if names and not panel.shared:  # above the curves, in room made for it
        columns = 1 if small else 3
        stretch(axes, "y", above=(0.12 if small else 0.1) * math.ceil(len(names) / columns))
        axes.legend(fontsize=8 if small else 10, framealpha=0.8, edgecolor="none", loc="upper left", ncols=columns)
    return mesh


def _finish_figure(figure: Figure, t: Telemetry, title: str, panels: Sequence[Panel], facts: Sequence[str]) -> None:
    """The legend of the groups below the figure, and the heading above it."""
    groups = _groups(panels)
    if groups:
        handles = [
            Line2D([], [], color=line.colour, linestyle=line.dash, linewidth=line.width, label=label)
            for label, line in groups.items()
        ]
        columns = _legend_size(panels)[0]
        figure.legend(handles=handles, loc="lower center", ncols=columns, fontsize=10, frameon=False)
    size = median_size(t)
    smoothed = size and any(line.noisy for panel in panels for line in panel.lines)
    medians = [f"bold: medians of {size:,} collections"] if smoothed else []
    head(figure, title, "; ".join([*t.facts, *medians, *facts]))


def _groups(panels: Sequence[Panel]) -> dict[str, Line]:
    return {line.label: line for panel in panels if panel.shared for line in panel.lines if line.label}


def _legend_size(panels: Sequence[Panel]) -> tuple[int, int]:
    """Columns and rows of the legend of the groups."""
    names = list(_groups(panels))
    columns = max(1, min(6, len(names), 105 // (max(map(len, names), default=0) + 8)))
    return columns, math.ceil(len(names) / columns)
