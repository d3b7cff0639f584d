"""Predictions against labels on the holdout examples, where the classes are few."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from learnscope.quantities.outputs import Holdout
from learnscope.reading.gather import labels_of
from learnscope.reading.words import percent
from learnscope.report.layout import INK, figure_with_bar, head
from learnscope.report.shares import share_bar
from learnscope.report.style import finish
from learnscope.store.reader import RunReader

MAX_CLASSES = 20
COUNTED = 12
"""Classes up to which every cell shows its count."""


class Confusion(NamedTuple):
    step: int
    classes: list[int]
    counts: NDArray[np.int64]
    """By label (down) and prediction (across)."""
    none: NDArray[np.int64]
    """By label: examples without a prediction, because their logits are not finite."""


def confusion_table(reader: RunReader) -> Confusion | None:
    """The last holdout step that kept labels and predictions."""
    for label in labels_of(reader, Holdout):
        for step in reversed(reader.array_steps(label)):
            try:
                arrays = reader.arrays(label, step)
            except OSError:  # the file of arrays is missing; an earlier one may be there
                continue
            table = _count(step, arrays.get("labels"), arrays.get("predictions"))
            if table is not None:
                return table
            break
    return None


def _count(step: int, labels: NDArray[np.int64] | None, predictions: NDArray[np.int64] | None) -> Confusion | None:
    if labels is None or predictions is None or labels.dtype.kind not in "iub" or labels.size != predictions.size:
        return None
    labels, predictions = labels.reshape(-1), predictions.reshape(-1)
    counted = labels >= 0  # negative labels are ignored
    labels, predictions = labels[counted], predictions[counted]
    predicted = predictions >= 0  # a negative number means no prediction
    classes = np.union1d(labels, predictions[predicted])
    if not 2 <= len(classes) <= MAX_CLASSES:
        return None
    across = np.where(predicted, np.searchsorted(classes, predictions), len(classes))
    counts = np.zeros((len(classes), len(classes) + 1), dtype=np.int64)
    np.add.at(counts, (np.searchsorted(classes, labels), across), 1)
    return Confusion(step, [int(c) for c in classes], counts[:, :-1], counts[:, -1])


def confusion_figure(reader: RunReader) -> Figure | None:
    confusion = confusion_table(reader)
    if confusion is None:
        return None
    step, classes, counts, none = confusion
    missing = int(none.sum())
    table = np.column_stack([counts, none]) if missing else counts
    names = [str(c) for c in classes]
    n, right = int(table.sum()), int(np.trace(counts))
    totals = table.sum(axis=1, keepdims=True)
    shares = np.divide(table, totals, out=np.full(table.shape, np.nan), where=totals > 0)
    side = 2.6 + 0.36 * len(classes)
    figure, axes, bar = figure_with_bar(side + 1.3, side + 2.1)
    image = axes.imshow(np.ma.masked_invalid(shares), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(table.shape[1]), [*names, *(["none"] if missing else [])])
    axes.set_yticks(range(len(classes)), names)
    finish(axes, x="predicted", y="label")
    if missing:
        axes.axvline(len(classes) - 0.5, color="white", linewidth=4)  # sets the column without a class apart
    if len(classes) <= COUNTED:
        for row, column in np.argwhere(table):
            dark = shares[row, column] < 0.5
            axes.text(column, row, f"{table[row, column]:,}", ha="center", va="center", fontsize=10,
                      color="white" if dark else INK)  # fmt: skip
    share_bar(image, bar, "share")
    without = f"; {missing:,} without a prediction, as their logits are not finite" if missing else ""
    facts = f"step {step:,}: {right:,} of {n:,} right ({percent(right / n)}){without}"
    head(figure, "Holdout predictions by class", facts)
    return figure
