"""Figures of the runs' curves, and of the distance of their weights."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from learnscope.comparison.audit_page import audit_figure
from learnscope.comparison.bars import weight_figure
from learnscope.comparison.series import Key, direction
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series
from learnscope.reading.words import count
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET, head, new_figure, panels_on, save
from learnscope.report.lines import MANY, curve
from learnscope.report.style import COLOURS, DASHES, few_ticks, finish

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison

AUDITS = "audits.png"
MOST, ACROSS = 12, 3
"""Most series on a figure, and in a row of it."""
DECADES = 100
"""Factor between the largest and the smallest number beyond which a scale is logarithmic."""


def write_figures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write every figure that there is data for; returns their paths."""
    paths = []
    for name, figure in drawn(comparison):
        save(figure, folder / name)
        paths.append(folder / name)
    return paths


def drawn(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    """File names and figures, one at a time: a figure takes a few megabytes."""
    used: set[str] = set()
    for probe, keys in families(comparison).items():
        name = re.sub(r"[^\w.-]", "_", f"curves-{probe}")
        while name in used:
            name += "_"
        used.add(name)
        if (figure := family_figure(comparison, probe, keys)) is not None:
            yield f"{name}.png", figure
    if comparison.audits and (audits := audit_figure(comparison.audits, Cuts())) is not None:
        yield AUDITS, audits
    colours = {label: look.colour for label, look in looks(comparison.labels).items()}
    if (weights := weight_figure(comparison.weights, colours)) is not None:
        yield "weights.png", weights


def families(comparison: Comparison) -> dict[str, list[Key]]:
    """The model's own series by probe; those of the optimizer's groups where a probe has no others (learning rates)."""
    by_probe: dict[str, list[Key]] = {}
    for probe in dict.fromkeys(key.probe for key in comparison.keys):
        own = [key for key in comparison.keys if key.probe == probe]
        keys = [key for key in own if key.kind == "model"] or [key for key in own if key.kind == "group"]
        if keys:
            by_probe[probe] = sorted(keys, key=lambda key: direction(key) is None)
    return by_probe


class Look(NamedTuple):
    """How a run is drawn, the same on every figure."""

    colour: str
    dash: str
    width: float


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """The first run wide, so that it still shows below another; dashes where the colours are used up."""
    return {
        label: Look(COLOURS[n % len(COLOURS)], DASHES[n // len(COLOURS) % len(DASHES)], max(3.4 - 1.8 * n, 1.4))
        for n, label in enumerate(labels)
    }


def family_figure(comparison: Comparison, probe: str, keys: Sequence[Key]) -> Figure | None:
    """Small multiples of a probe's series, every run in its colour; None if there is nothing to show."""
    reasons = {key: _reason_not_drawn(comparison.of(key)) for key in keys}
    drawable = [key for key, reason in reasons.items() if reason is None]
    if not drawable:
        return None
    shown = {key: comparison.of(key) for key in drawable[:MOST]}
    columns = min(ACROSS, len(shown))
    down = math.ceil(len(shown) / columns)
    figure = new_figure(1.9 + (2.1 if down > 1 else 3.0) * down)
    grid = figure.subplots(down, columns, sharex=True, squeeze=False)
    titles = _titles(keys)
    marks: set[str] = set()
    for axes, (key, runs), lowest in panels_on(grid, list(shown.items())):
        parts = {p.other: p.series[key].step for p in comparison.partings if key in p.series}
        marks |= _panel(axes, runs, parts, looks(comparison.labels))
        finish(axes, x="step" if lowest else "", size=10)
        axes.tick_params(labelbottom=lowest)
        axes.set_title(shorten(titles[key], 110 // columns), loc="left", fontsize=10, color=INK)
    _legend(figure, comparison.labels, marks)
    facts = [count(len(shown), "series", "series")]
    facts += [f"{len(drawable) - MOST:,} more left out"] if len(drawable) > MOST else []
    left = Counter(reason for reason in reasons.values() if reason is not None)
    facts += [f"{n:,} {reason} left out" for reason, n in left.items()]
    if any(len(series.finite) > MANY for runs in shown.values() for series in runs.values()):
        facts.append(f"more than {MANY} points thin, with their running median over them")
    head(figure, probe, "; ".join(facts))
    return figure


def _reason_not_drawn(runs: Mapping[str, Series]) -> str | None:
    """Why a series is not drawn; the table has its values."""
    if len(runs) < 2:
        return "that only one run has"
    if not any(len(series.finite) > 1 for series in runs.values()):
        return "with no two values in any run"
    values = {value for series in runs.values() for value in series.values.tolist()}
    return "that never change" if len(values) == 1 else None


def _titles(keys: Sequence[Key]) -> dict[Key, str]:
    """Short names that still differ: without labels that all series of a name share."""
    titles = {}
    for key in keys:
        shared = set.intersection(*(set(other.labels) for other in keys if other.name == key.name))
        own = ", ".join(f"{label}={value}" for label, value in key.labels if (label, value) not in shared)
        where = "" if key.kind == "model" else f" {key.scope}"
        titles[key] = f"{key.name}{where}{f' ({own})' if own else ''}"
    return titles


def _panel(
    axes: Axes, runs: Mapping[str, Series], parts: Mapping[str, int | None], look_of: Mapping[str, Look]
) -> set[str]:
    """Draw one series of all runs; returns the marks that the legend must explain."""
    marks = set()
    for n, (label, series) in enumerate(runs.items()):
        look = look_of[label]
        few = len(series.finite) <= 60
        curve(axes, series, look.colour, "", markers=few, width=look.width, dash=look.dash)
        if len(series.broken):
            # at the bottom of the axes, each run on a line of its own
            height = np.full(len(series.broken), 0.03 + 0.06 * n)
            axes.plot(series.broken, height, "x", color=look.colour, markersize=5, markeredgewidth=1.4,
                      transform=axes.get_xaxis_transform())  # fmt: skip
            marks.add("broken")
    parted = [step for step in parts.values() if step is not None]
    for label, step in parts.items():
        if step is not None:
            # in the colour of the run if there are several, unless another parts at the same step
            alone = len(parts) > 1 and parted.count(step) == 1
            axes.axvline(step, color=look_of[label].colour if alone else QUIET, linestyle=":", zorder=1)
            marks.add("parts")
    few_ticks(axes, [series.finite.values for series in runs.values()], factor=DECADES)
    return marks


def _legend(figure: Figure, labels: Sequence[str], marks: set[str]) -> None:
    handles = []
    for label, look in looks(labels).items():
        line = Line2D([], [], color=look.colour, linewidth=look.width, label=shorten(label))
        line.set_linestyle(look.dash)  # type: ignore[arg-type]  # any of DASHES is one
        handles.append(line)
    if "parts" in marks:
        handles.append(Line2D([], [], color=QUIET, linestyle=":", label=f"parts from {shorten(labels[0])}"))
    if "broken" in marks:
        handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="NaN or infinite"))
    figure.legend(handles=handles, loc="lower center", ncols=min(len(handles), 5), fontsize=10, frameon=False)
