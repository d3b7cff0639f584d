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
from learnscope.comparison.ranking_figure import ranking_figure
from learnscope.comparison.series import Key, direction
from learnscope.comparison.weights import Weights
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import Series
from learnscope.reading.words import count, percent
from learnscope.report.heatmap import layer_names, shorten
from learnscope.report.layout import INK, QUIET, head, new_figure, panels_on, save
from learnscope.report.lines import MANY, curve
from learnscope.report.style import BROKEN, COLOURS, DASHES, Dash, few_ticks, finish, guides, log_ticks

if TYPE_CHECKING:
    from learnscope.comparison.compared import Comparison

AUDITS, RANKING = "audits.png", "ranking.png"
MOST, ACROSS = 12, 3
"""Most series on a figure, and in a row of it."""
DECADES = 100
"""Factor between the largest and the smallest number beyond which a scale is logarithmic."""
MOST_LAYERS = 40
"""Layers drawn at most: those farthest apart, in the model's order."""


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
    if comparison.ranking is not None and (ranked := ranking_figure(comparison.ranking)) is not None:
        yield RANKING, ranked
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
    dash: Dash
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
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.dash, linewidth=look.width, label=shorten(label))
        for label, look in looks(labels).items()
    ]
    if "parts" in marks:
        handles.append(Line2D([], [], color=QUIET, linestyle=":", label=f"parts from {shorten(labels[0])}"))
    if "broken" in marks:
        handles.append(Line2D([], [], color=INK, marker="x", linestyle="none", label="NaN or infinite"))
    figure.legend(handles=handles, loc="lower center", ncols=min(len(handles), 5), fontsize=10, frameon=False)


def weight_figure(weights: Weights, tints: Mapping[str, str]) -> Figure | None:
    """A bar for each layer and run: ‖ΔW‖/‖W‖, on a logarithmic scale where it spans more than two decades."""
    frame = weights.frame()
    frame = frame[frame["layer"] != "model"]
    table = frame.pivot(index="layer", columns="run", values="relative")
    table = table.reindex(index=frame["layer"].unique(), columns=list(weights.distances))
    if not table.notna().to_numpy().any():
        return None
    # a layer without a value is worth a look
    shown = table[table.index.isin(table.fillna(np.inf).max(axis=1).nlargest(MOST_LAYERS).index)]
    runs = len(shown.columns)
    figure = new_figure(1.9 + 0.26 * len(shown) * (1 if runs == 1 else 0.45 * runs + 0.3))
    axes = figure.subplots()
    values = shown.to_numpy(np.float64)
    positive = values[np.isfinite(values) & (values > 0)]
    log = len(positive) > 0 and positive.max() > 100 * positive.min()
    start = float(positive.min()) / 3 if log else 0.0
    high = 0.8 / runs
    for n, label in enumerate(shown.columns):
        places = np.arange(len(shown)) + 0.1 + high * (n + 0.5)
        axes.barh(places, np.nan_to_num(values[:, n]) - start * log, left=start, height=high * 0.9,
                  color=tints[label], label=shorten(str(label)))  # fmt: skip
        for place, value in zip(places.tolist(), values[:, n].tolist(), strict=True):
            text, tint = (percent(value), QUIET) if np.isfinite(value) else ("no value", BROKEN)
            axes.annotate(text, (max(value, start) if np.isfinite(value) else start, place), (4, 0), va="center",
                          textcoords="offset points", fontsize=8, color=tint)  # fmt: skip
    _weight_scale(axes, float(positive.max()) if len(positive) else 1.0, start)
    names, common = layer_names([str(layer) for layer in table.index], {})
    names = [name for name, layer in zip(names, table.index, strict=True) if layer in shown.index]
    axes.set_yticks(np.arange(len(shown)) + 0.5, [shorten(name) for name in names])
    axes.set_ylim(len(shown), 0)
    guides(axes, "x")
    finish(axes, x="‖ΔW‖/‖W‖", y="layer")
    axes.tick_params(axis="y", length=0)
    if runs > 1:
        figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=5, fontsize=10, frameon=False)
    title = f"Distance of the weights from those of {weights.reference}"
    head(figure, title, _weight_facts(weights, len(table), len(shown), common))
    return figure


def _weight_scale(axes: Axes, highest: float, start: float) -> None:
    """Linear from 0, or logarithmic from a start above it."""
    if not start:
        axes.set_xlim(0, 1.12 * highest)
        axes.xaxis.set_major_formatter(lambda value, _: percent(value))
        return
    axes.set_xscale("log")
    axes.set_xlim(start, highest * (highest / start) ** 0.12)
    ticks = log_ticks(start, highest)
    axes.set_xticks(ticks, [percent(tick) for tick in ticks])
    axes.minorticks_off()


def _weight_facts(weights: Weights, layers: int, shown: int, common: str) -> str:
    steps = ", ".join(f"{label} at step {step:,}" for label, step in weights.steps.items())
    facts = [count(layers, "layer") + (f" of {common}" if common else ""), f"weights of {steps}"]
    if shown < layers:
        facts.append(f"the {shown} farthest are shown")
    for label, distance in weights.distances.items():
        model = distance.whole
        facts.append(f"{label} as a whole {percent(model.relative) if model.relative is not None else model.status}")
    return "; ".join(facts)
