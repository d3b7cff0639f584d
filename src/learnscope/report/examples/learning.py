"""Figures of the training examples over the training: curves, the data map, the hardest examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.reading.gather import Floats
from learnscope.report.heatmap import colour_bar
from learnscope.report.layout import INK, head, margins, new_figure, save_all
from learnscope.report.style import COLOURS, finish, legend, lined

HARDEST = 20
"""Most examples in the figure of the hardest."""
POINTS = 20_000
"""Most examples in the data map; of more, every k-th."""
GROUPS = 6
"""Most groups with a curve: the slowest and the fastest."""


def plot_learning(
    epochs: Sequence[Mapping[str, Any]], frame: pd.DataFrame, kinds: Mapping[str, Any], folder: Path
) -> list[Path]:
    """Write `learning_curves.png`, `data_map.png` and `hardest_examples.png`, if there is data for them.

    Args:
        epochs: the statistics of each epoch, in order.
        frame: one row for each example, as in `Ledger.frame()`.
        kinds: which examples are hard, from `learnscope.ledger.patterns.patterns`.
        folder: where the files go.
    """
    figures: dict[str, Figure] = {}
    if epochs:
        figures["learning_curves"] = curves(epochs)
    known = with_confidence(frame)
    if len(known):
        figures["data_map"] = data_map(known, kinds)
        figures["hardest_examples"] = hardest(known, kinds)
    return save_all(figures, folder)


def with_confidence(frame: pd.DataFrame) -> pd.DataFrame:
    """The examples whose probability was finite at least once."""
    known: pd.DataFrame = frame[np.isfinite(frame["confidence"].to_numpy(dtype=np.float64))]
    return known


def curves(epochs: Sequence[Mapping[str, Any]]) -> Figure:
    x = np.array([_number(epoch["epoch"], place) for place, epoch in enumerate(epochs)])
    figure = new_figure(6.4)
    last = epochs[-1]
    head(
        figure,
        "Learning over epochs",
        f"{last['examples']:,} examples, {last['presentations']:,} presentations; accuracy and loss are of the "
        "presentations of each epoch, with the weights of that moment",
    )
    grid = figure.subplots(2, 2)
    _lines(grid[0, 0], x, {"accuracy": "share correct", "confidence": "mean p(gold)"}, epochs)
    finish(grid[0, 0], y="share of presentations")
    _lines(grid[0, 1], x, {"loss": "mean loss"}, epochs)
    finish(grid[0, 1], y="loss")
    _shares(grid[1, 0], x, epochs)
    finish(grid[1, 0], "epoch", "share of examples")
    _groups(grid[1, 1], x, epochs)
    finish(grid[1, 1], "epoch", "share correct by group")
    for axes in grid.flat:
        lined(axes, 6)
        legend(axes)
    return figure


def _lines(axes: Axes, x: Floats, names: Mapping[str, str], epochs: Sequence[Mapping[str, Any]]) -> None:
    for colour, (name, label) in zip(COLOURS, names.items(), strict=False):
        axes.plot(x, _series(epochs, name), color=colour, label=label, marker="o" if len(x) < 15 else "", markersize=4)


def _shares(axes: Axes, x: Floats, epochs: Sequence[Mapping[str, Any]]) -> None:
    """Kinds of examples so far, and examples forgotten in each epoch."""
    names = {"learned": "correct last time", "unforgettable": "never forgotten", "never_learned": "never correct"}
    _lines(axes, x, names, epochs)
    total = _series(epochs, "total_forgetting_events")
    each = np.diff(total, prepend=0.0) / np.maximum(_series(epochs, "examples"), 1)
    width = 0.8 * (float(np.diff(np.unique(x)).min()) if len(np.unique(x)) > 1 else 1.0)
    axes.bar(x, each, width=width, color=COLOURS[3], alpha=0.5, label="forgotten in the epoch")
    axes.set_ylim(bottom=0)


def _groups(axes: Axes, x: Floats, epochs: Sequence[Mapping[str, Any]]) -> None:
    by_group = [epoch["accuracy_by_group"] for epoch in epochs]
    names = list(dict.fromkeys(name for groups in by_group for name in groups))
    if not names:
        axes.text(0.5, 0.5, "no groups to tell apart", ha="center", va="center", transform=axes.transAxes)
        return
    curves = {name: np.array([_number(groups.get(name), np.nan) for groups in by_group]) for name in names}
    order = sorted(names, key=lambda name: float(np.nanmean(curves[name])))
    shown = order if len(order) <= GROUPS else [*order[: GROUPS // 2], *order[-(GROUPS // 2) :]]
    for colour, name in zip(COLOURS, shown, strict=False):
        axes.plot(x, curves[name], color=colour, label=f"group {name}" if name.isdecimal() else name)
    if len(order) > len(shown):
        axes.set_title(f"the {GROUPS // 2} slowest and fastest of {len(order)}", loc="left", fontsize=10)


def data_map(frame: pd.DataFrame, kinds: Mapping[str, Any]) -> Figure:
    """Confidence against variability, coloured by correctness (arXiv 2009.10795)."""
    shown = frame.iloc[:: max(1, -(-len(frame) // POINTS))]
    figure = new_figure(6.0)
    part = f", every {len(frame) // len(shown)}th shown" if len(shown) < len(frame) else ""
    head(
        figure,
        "Data map",
        f"{len(frame):,} examples{part}: mean and standard deviation of p(gold) over their presentations. "
        f"{len(kinds['hard_examples']):,} are hard (ringed), {len(kinds['easy_examples']):,} easy",
    )
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 0.03])
    axes = figure.add_subplot(grid[0, 0])
    order = shown.sample(frac=1, random_state=0)  # so that the order of the data does not decide which are on top
    size = float(np.clip(3e4 / len(shown), 4, 28))
    points = axes.scatter(
        order["variability"], order["confidence"], c=order["correctness"], cmap="viridis", vmin=0, vmax=1, s=size,
        alpha=0.8, linewidths=0, rasterized=True,
    )  # fmt: skip
    hard = shown[shown["id"].isin(kinds["hard_examples"])]
    axes.scatter(hard["variability"], hard["confidence"], s=2.2 * size, facecolors="none", edgecolors="#D55E00",
                 linewidths=0.6, alpha=0.5)  # fmt: skip
    axes.set_xlim(0, max(0.52, 1.05 * float(shown["variability"].max())))
    axes.set_ylim(-0.02, 1.02)
    finish(axes, "variability: standard deviation of p(gold)", "confidence: mean p(gold)")
    bar = figure.add_subplot(grid[0, 1])
    margins(figure).bar = True
    colour_bar(figure, points, bar, "share correct", [0, 0.25, 0.5, 0.75, 1])
    return figure


def hardest(frame: pd.DataFrame, kinds: Mapping[str, Any]) -> Figure:
    ranked = frame.sort_values(["confidence", "id"]).head(HARDEST).iloc[::-1]
    figure = new_figure(1.5 + 0.28 * len(ranked))
    hard = len(kinds["hard_examples"])
    head(
        figure,
        f"The {len(ranked)} hardest examples of {len(frame):,}",
        f"By mean p(gold), which stands beside each bar with how often it was correct. Orange: never. {hard:,} "
        f"{'is' if hard == 1 else 'are'} hard: never correct, or 1 − mean p(gold) above {_cut(kinds['hard_cut'])}.",
    )
    axes = figure.subplots()
    places = np.arange(len(ranked))
    measured = (ranked["presentations"] - ranked["nonfinite"]).to_numpy(dtype=np.float64)
    loss = ranked["cumulative_loss"].to_numpy(dtype=np.float64) / measured
    never = ranked["never_learned"].to_numpy(dtype=bool)
    axes.barh(places, loss, color=np.where(never, COLOURS[1], COLOURS[0]).tolist(), height=0.7)
    for place, width, (_, row) in zip(places.tolist(), loss.tolist(), ranked.iterrows(), strict=True):
        times = round(row["correctness"] * row["presentations"])
        text = f" {row['confidence']:.3f}, {times} of {row['presentations']}"
        axes.text(width, place, text, va="center", fontsize=9, color=INK)
    axes.set_xlim(0, 1.18 * max(float(loss.max()), 1e-9))
    axes.set_yticks(places, [_name(row) for _, row in ranked.iterrows()])
    finish(axes, "mean loss over its presentations", "")
    return figure


def _cut(cut: float | None) -> str:
    return "Q3 + 1.5·IQR" if cut is None else f"Q3 + 1.5·IQR = {cut:.2f}"


def _name(row: Any) -> str:
    target = row.get("target", pd.NA)
    return f"id {row['id']}" if pd.isna(target) or target >= 10_000 else f"id {row['id']}, class {target}"


def _series(epochs: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([_number(epoch.get(name), np.nan) for epoch in epochs], dtype=np.float64)


def _number(value: Any, otherwise: float) -> float:
    return otherwise if value is None else float(value)
