"""Figures of the training examples over the training: curves, the data map, the hardest examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.ledger import table
from learnscope.ledger.patterns import patterns
from learnscope.ledger.stored import stored_arrays
from learnscope.quantities.examples import ExampleLedger
from learnscope.reading.cells import epoch_statistics
from learnscope.reading.gather import labels_of
from learnscope.report.heatmap import colour_bar
from learnscope.report.layout import INK, figure_with_bar, head, new_figure, save_all
from learnscope.report.style import COLOURS, finish, legend, lined
from learnscope.store.reader import RunReader

HARDEST = 20
POINTS = 20_000
"""Most examples in the data map; of more, every k-th."""
GROUPS = 6


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
    examples = with_confidence(frame)
    if len(examples):
        figures["data_map"] = data_map(examples, kinds)
        figures["hardest_examples"] = hardest(examples, kinds)
    return save_all(figures, folder)


def with_confidence(frame: pd.DataFrame) -> pd.DataFrame:
    """The examples whose probability was finite at least once."""
    examples: pd.DataFrame = frame[np.isfinite(frame["confidence"].to_numpy(dtype=np.float64))]
    return examples


def curves(epochs: Sequence[Mapping[str, Any]]) -> Figure:
    frame = pd.DataFrame(epochs)
    frame.index = frame["epoch"].fillna(pd.Series(range(len(frame)))).astype(float)
    figure = new_figure(6.4)
    last = epochs[-1]
    followed = "no single examples, since their ids named different ones"
    if last["examples"] is not None:
        followed = f"{last['examples']:,} examples, {last['presentations']:,} presentations"
    head(
        figure,
        "Learning over epochs",
        f"{followed}; accuracy and loss are of the presentations of each epoch, with the weights of that moment",
    )
    (above_left, above_right), (below_left, below_right) = grid = figure.subplots(2, 2)
    _lines(above_left, frame, {"accuracy": "share correct", "confidence": "mean p(gold)"})
    finish(above_left, y="share of presentations")
    _lines(above_right, frame, {"loss": "mean loss"})
    finish(above_right, y="loss")
    _shares(below_left, frame)
    finish(below_left, "epoch", "share of examples")
    _groups(below_right, frame)
    finish(below_right, "epoch", "share correct by group")
    for axes in grid.flat:
        lined(axes, 6)
        legend(axes)
    return figure


def _lines(axes: Axes, epochs: pd.DataFrame, names: Mapping[str, str]) -> None:
    mark = "o" if len(epochs) < 15 else ""
    for colour, (name, label) in zip(COLOURS, names.items(), strict=False):
        axes.plot(epochs.index, epochs[name].astype(float), color=colour, label=label, marker=mark, markersize=4)


def _shares(axes: Axes, epochs: pd.DataFrame) -> None:
    """Kinds of examples so far, and examples forgotten in each epoch."""
    names = {"learned": "correct last time", "unforgettable": "never forgotten", "never_learned": "never correct"}
    _lines(axes, epochs, names)
    events = epochs["total_forgetting_events"].to_numpy(np.float64)
    forgotten = np.diff(events, prepend=0.0) / np.maximum(epochs["examples"].to_numpy(np.float64), 1)
    width = 0.8 * float(np.diff(np.unique(epochs.index)).min(initial=np.inf if epochs.index.nunique() > 1 else 1.0))
    axes.bar(epochs.index, forgotten, width=width, color=COLOURS[3], alpha=0.5, label="forgotten in the epoch")
    axes.set_ylim(bottom=0)


def _groups(axes: Axes, epochs: pd.DataFrame) -> None:
    groups = pd.DataFrame(epochs["accuracy_by_group"].tolist(), index=epochs.index, dtype=float)
    if groups.empty:
        axes.text(0.5, 0.5, "no groups to tell apart", ha="center", va="center", transform=axes.transAxes)
        return
    order = sorted(map(str, groups), key=lambda name: float(np.nanmean(groups[name])))
    shown = order if len(order) <= GROUPS else [*order[: GROUPS // 2], *order[-(GROUPS // 2) :]]
    for colour, name in zip(COLOURS, shown, strict=False):
        axes.plot(groups.index, groups[name], color=colour, label=f"group {name}" if name.isdecimal() else name)
    if len(order) > len(shown):
        axes.set_title(f"the {GROUPS // 2} slowest and fastest of {len(order)}", loc="left", fontsize=10)


def data_map(frame: pd.DataFrame, kinds: Mapping[str, Any]) -> Figure:
    """Confidence against variability, coloured by correctness (arXiv 2009.10795)."""
    shown = frame.iloc[:: max(1, -(-len(frame) // POINTS))]
    figure, axes, bar = figure_with_bar(6.0)
    part = f", every {len(frame) // len(shown)}th shown" if len(shown) < len(frame) else ""
    head(
        figure,
        "Data map",
        f"{len(frame):,} examples{part}: mean and standard deviation of p(gold) over their presentations. "
        f"{len(kinds['hard_examples']):,} are hard (ringed), {len(kinds['easy_examples']):,} easy",
    )
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
    colour_bar(figure, points, bar, "share correct", [0, 0.25, 0.5, 0.75, 1])
    return figure


def hardest(frame: pd.DataFrame, kinds: Mapping[str, Any]) -> Figure:
    ranked = frame.sort_values(["confidence", "id"]).head(HARDEST).iloc[::-1]
    figure = new_figure(1.5 + 0.28 * len(ranked))
    hard = len(kinds["hard_examples"])
    cut = "" if kinds["hard_cut"] is None else f" = {kinds['hard_cut']:.2f}"
    head(
        figure,
        f"The {len(ranked)} hardest examples of {len(frame):,}",
        f"By mean p(gold), which stands beside each bar with how often it was correct. Orange: never. {hard:,} "
        f"{'is' if hard == 1 else 'are'} hard: never correct, or 1 − mean p(gold) above Q3 + 1.5·IQR{cut}.",
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
    classes = [row.get("target", pd.NA) for _, row in ranked.iterrows()]
    suffixes = ["" if pd.isna(target) or target >= 10_000 else f", class {target}" for target in classes]
    axes.set_yticks(places, [f"id {example}{suffix}" for example, suffix in zip(ranked["id"], suffixes, strict=True)])
    finish(axes, "mean loss over its presentations", "")
    return figure


def learning_figure(reader: RunReader) -> Figure | None:
    epochs = [
        epoch_statistics(record)
        for label in labels_of(reader, ExampleLedger)[:1]
        for record in reader.records(label)
        if record.tables
    ]
    return curves(epochs) if epochs else None


def ledger_figure(draw: Callable[[pd.DataFrame, Mapping[str, Any]], Figure], reader: RunReader) -> Figure | None:
    """`data_map` or `hardest` of a run's ledger."""
    arrays = stored_arrays(reader.backend)
    if arrays is None or (examples := with_confidence(table.frame(arrays))).empty:
        return None
    return draw(examples, patterns(arrays))
