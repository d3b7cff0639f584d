"""A figure of the distance between the runs' weights, by layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.comparison.weights import Weights
from learnscope.reading.words import count, percent
from learnscope.report.heatmap import layer_names, shorten
from learnscope.report.layout import QUIET, head, new_figure
from learnscope.report.style import BROKEN, finish, guides, log_ticks

MOST = 40
"""Layers drawn at most: those farthest apart, in the model's order."""


def weight_figure(weights: Weights, tints: Mapping[str, str]) -> Figure | None:
    """A bar for each layer and run: ‖ΔW‖/‖W‖, on a logarithmic scale where it spans more than two decades."""
    frame = weights.frame()
    frame = frame[frame["layer"] != "model"]
    table = frame.pivot(index="layer", columns="run", values="relative")
    table = table.reindex(index=frame["layer"].unique(), columns=list(weights.distances))
    if not table.notna().to_numpy().any():
        return None
    # a layer without a value is worth a look
    shown = table[table.index.isin(table.fillna(np.inf).max(axis=1).nlargest(MOST).index)]
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
    _scale(axes, float(positive.max()) if len(positive) else 1.0, start)
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
    head(figure, title, _facts(weights, len(table), len(shown), common))
    return figure


def _scale(axes: Axes, highest: float, start: float) -> None:
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


def _facts(weights: Weights, layers: int, shown: int, common: str) -> str:
    steps = ", ".join(f"{label} at step {step:,}" for label, step in weights.steps.items())
    facts = [count(layers, "layer") + (f" of {common}" if common else ""), f"weights of {steps}"]
    if shown < layers:
        facts.append(f"the {shown} farthest are shown")
    for label, distance in weights.distances.items():
        model = distance.whole
        facts.append(f"{label} as a whole {percent(model.relative) if model.relative is not None else model.status}")
    return "; ".join(facts)
