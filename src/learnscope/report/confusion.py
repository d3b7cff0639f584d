"""Predictions against labels on the holdout examples, where the classes are few."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from learnscope.findings.gather import labels_of
from learnscope.findings.words import percent
from learnscope.report.style import INK, finish, new_figure
from learnscope.store.reader import RunReader

MAX_CLASSES = 20
COUNTED = 12
"""Classes up to which every cell carries its count."""


def confusion_table(reader: RunReader) -> tuple[int, list[int], NDArray[np.int64]] | None:
    """The last holdout step that kept labels and predictions: step, classes, counts[label, prediction]."""
    for label in labels_of(reader, "Holdout"):
        for step in reversed(reader.array_steps(label)):
            try:
                arrays = reader.arrays(label, step)
            except OSError:  # the side file is gone; an earlier one may be there
                continue
            labels, predictions = arrays.get("labels"), arrays.get("predictions")
            if labels is None or predictions is None or labels.dtype.kind not in "iub":
                break
            labels, predictions = labels.reshape(-1), predictions.reshape(-1)
            counted = labels >= 0  # negative labels mark positions that do not count
            if labels.shape != predictions.shape or not counted.any():
                break
            classes = np.union1d(labels[counted], predictions[counted])
            if not 2 <= len(classes) <= MAX_CLASSES:
                break
            table = np.zeros((len(classes), len(classes)), dtype=np.int64)
            down, across = (np.searchsorted(classes, part[counted]) for part in (labels, predictions))
            np.add.at(table, (down, across), 1)
            return step, [int(c) for c in classes], table
    return None


def confusion_figure(reader: RunReader) -> Figure | None:
    found = confusion_table(reader)
    if found is None:
        return None
    step, classes, table = found
    n, right = int(table.sum()), int(np.trace(table))
    totals = table.sum(axis=1, keepdims=True)
    shares = np.divide(table, totals, out=np.full(table.shape, np.nan), where=totals > 0)
    size = 3.6 + 0.32 * len(classes)
    figure = new_figure(size, size + 1.2)
    axes = figure.subplots()
    image = axes.imshow(np.ma.masked_invalid(shares), cmap="cividis", vmin=0, vmax=1)
    axes.set_xticks(range(len(classes)), [str(c) for c in classes])
    axes.set_yticks(range(len(classes)), [str(c) for c in classes])
    if len(classes) <= COUNTED:
        for row, column in np.ndindex(*table.shape):
            light = np.isfinite(shares[row, column]) and shares[row, column] < 0.5
            axes.text(column, row, f"{table[row, column]:,}", ha="center", va="center", fontsize=10,
                      color="white" if light else INK)  # fmt: skip
    facts = f"step {step:,}: {right:,} of {n:,} right ({percent(right / n)})"
    finish(axes, "Holdout predictions by class", facts, x="predicted", y="label")
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.set_label("share of the label's examples", fontsize=10, color=INK)
    bar.ax.tick_params(labelsize=9, colors=INK)
    bar.outline.set_visible(False)
    return figure
