"""Gradients of the layers over tracked batches: a heatmap, and a profile over the depth of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.findings.gradients.layer_norms import LayerNorms
from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Loss
from learnscope.reading.gather import Floats, Grid, grid, rows, series
from learnscope.reading.words import count, listed
from learnscope.report.broken import breaks
from learnscope.report.heatmap import body_height, heatmap, layer_names, layer_types, name_rows
from learnscope.report.layout import INK, QUIET, head, new_figure, save_all
from learnscope.report.style import BROKEN, COLOURS, finish, guides, log_scale
from learnscope.store.reader import RunReader

BAND = (0.1, 0.9)
"""Quantiles at the ends of the profile's band."""
MOST_EPOCHS = 12
"""Epochs up to which a line marks the start of each."""
NAMED = 4


def plot_gradients(reader: RunReader, layer_norms: LayerNorms, folder: Path) -> list[Path]:
    """Write `gradient_flow.png` and `gradient_profile.png`; returns their paths."""
    norms = grid(reader, GradientFlow.norm, stage="stepped")
    types = layer_types(reader)
    figures = {
        "gradient_flow": _over_batches(reader, norms, layer_norms, types),
        "gradient_profile": _profile(reader, norms, layer_norms, types),
    }
    return save_all(figures, folder)


def _over_batches(reader: RunReader, norms: Grid, layer_norms: LayerNorms, types: dict[str, str]) -> Figure:
    figure = heatmap(
        norms, "Gradient norm by layer", "‖g‖", series(reader, Loss.loss),
        meaning=f"of the tracked parameters; a step is a tracked batch{_verdict(layer_norms)}", breaks=breaks(reader),
        types=types,
    )  # fmt: skip
    axes = next(axes for axes in figure.axes if axes.get_ylabel() == "layer")
    frame = rows(reader, GradientFlow.norm, stage="stepped")
    starts = [int(step) for step in frame["step"][frame["epoch"] != frame["epoch"].shift()]]
    # more lines would hide the colours
    marked = 1 < len(starts) <= min(MOST_EPOCHS, len(norms.steps) // 4)
    axes.set_xlabel("tracked batch" + (" (lines: an epoch begins)" if marked else ""), fontsize=11, color=INK)
    for start in starts[1:] if marked else ():
        axes.axvline(start - 0.5, color="white", linewidth=2.4)
        axes.axvline(start - 0.5, color=INK, linewidth=0.9)
    _colour_names(axes, norms, layer_norms)
    return figure


def _profile(reader: RunReader, norms: Grid, layer_norms: LayerNorms, types: dict[str, str]) -> Figure:
    """Layers down, as in the heatmap; ‖g‖ and ‖g‖/‖W‖ across, with the spread over the batches."""
    ratios = grid(reader, GradientFlow.gradient_to_weight).aligned(norms)
    body = body_height(len(norms.scopes), 0.3)
    figure = new_figure(body + 2.1)
    left, right = figure.subplots(1, 2, sharey=True)
    names, common = layer_names(norms.scopes, types)
    for axes, values, quantity in ((left, norms.values, "‖g‖"), (right, ratios, "‖g‖/‖W‖")):
        _band(axes, values)
        medians = pd.DataFrame(values, columns=norms.scopes).where(values > 0).median()
        for marked, mark, label in ((layer_norms.vanishing, "<", "vanishes"), (layer_norms.exploding, ">", "explodes")):
            if marked:
                places = np.array([norms.scopes.index(name) for name in marked]) + 0.5
                axes.plot(medians[list(marked)], places, mark, color=BROKEN, markersize=9, label=label)
        finish(axes, x=quantity, y="layer" if axes is left else "")
        guides(axes, "x")
    unnamed = name_rows(left, names, body)
    left.set_ylim(len(names), 0)
    right.tick_params(axis="y", labelleft=False, length=0)
    _colour_names(left, norms, layer_norms)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=10, frameon=False)
    layers = f"{count(len(names), 'layer')}{f' of {common}' if common else ''}{unnamed}, from input to output"
    absent = {"zero": int((norms.values == 0).sum()), "not finite": int(norms.broken.sum())}
    parts = [f"{n:,} {what}" for what, n in absent.items() if n]
    left_out = f"; norms left out: {', '.join(parts)}" if parts else ""
    head(figure, "Gradients over the depth", f"{layers}; {count(len(norms.steps), 'tracked batch', 'tracked batches')}"
         f"{_verdict(layer_norms)}{left_out}")  # fmt: skip
    return figure


def _band(axes: Axes, values: Floats) -> None:
    """Median and quantiles of each layer over the batches whose gradient was finite and not zero."""
    present = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    low, middle, high = pd.DataFrame(present).quantile([BAND[0], 0.5, BAND[1]]).to_numpy()
    place = np.arange(values.shape[1]) + 0.5
    shown = np.isfinite(middle)
    if not shown.any():
        axes.text(0.5, 0.5, "no number", transform=axes.transAxes, ha="center", color=QUIET)
        return
    # a bar for every layer, so that a single layer has a band as well
    axes.barh(place[shown], (high - low)[shown], left=low[shown], height=0.62, color=COLOURS[4], alpha=0.45,
              label=f"middle {BAND[1] - BAND[0]:.0%} of the batches")  # fmt: skip
    axes.plot(middle[shown], place[shown], color=COLOURS[0], marker="o", markersize=4, linewidth=1.4, label="median")
    ends = float(low[shown].min()) / 2, float(high[shown].max()) * 2
    log_scale(axes, *ends, x=True, most=6)
    axes.set_xlim(*ends)


def _colour_names(axes: Axes, norms: Grid, layer_norms: LayerNorms) -> None:
    """Colour the names of layers that vanish or explode like their marks."""
    marked = {norms.scopes.index(name) for name in [*(layer_norms.vanishing or ()), *(layer_norms.exploding or ())]}
    for place, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        if int(place) in marked:
            text.set_color(BROKEN)
            text.set_fontweight("bold")


def _verdict(layer_norms: LayerNorms) -> str:
    if layer_norms.vanishing is None or layer_norms.exploding is None:
        return f"; not judged: {layer_norms.reason}"
    kinds = [(layer_norms.vanishing, "vanishing"), (layer_norms.exploding, "exploding")]
    parts = [f"{word}: {listed(names, NAMED)}" for names, word in kinds if names]
    return f"; {'; '.join(parts)}" if parts else "; no layer vanishes or explodes"
