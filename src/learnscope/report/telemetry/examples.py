"""How the outputs for each held-out example change: the margin of its true class, or its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from numpy.typing import NDArray

from learnscope.reading.gather import Floats
from learnscope.reading.words import count, percent
from learnscope.report.heatmap import MAX_COLUMNS
from learnscope.report.layout import INK
from learnscope.report.style import ZERO, step_edges
from learnscope.report.telemetry.data import HOLDOUT, Telemetry

NAMED = 16
"""Labels beyond which not every one is named."""


@dataclass(frozen=True)
class Examples:
    """A number for every collection (down) and held-out example (across), examples of a label side by side."""

    steps: NDArray[np.int64]
    values: Floats
    labels: NDArray[Any]
    classes: int
    """0 where the labels are no classes."""
    left_out: int
    """Collections with other held-out examples than the last."""

    @property
    def facts(self) -> list[str]:
        """What there is to say beside the colours."""
        order = "grouped by label" if self.classes else "in the order of their targets"
        out = [f"{count(self.values.shape[1], 'example')} in {count(len(self.steps), 'collection')}, {order}"]
        if self.classes:
            known = np.isfinite(self.values)
            right = (self.values > 0) & known
            if known[-1].any():
                out.append(f"{percent(float(right[-1].sum() / known[-1].sum()))} right at step {self.steps[-1]:,}")
            never = int((known.any(axis=0) & ~right.any(axis=0)).sum())
            out.append(f"{never:,} never right")
        if not np.isfinite(self.values).all():
            out.append("grey: no value")
        if self.left_out:
            out.append(f"{count(self.left_out, 'collection')} of other examples left out")
        return out


def examples(t: Telemetry) -> Examples | None:
    """None without logits and labels, or if they are not one row of logits for each label."""
    if f"{HOLDOUT}.logits" not in t.table or f"{HOLDOUT}.labels" not in t.table:
        return None
    logits, labels = t.table[f"{HOLDOUT}.logits"].tolist(), t.table[f"{HOLDOUT}.labels"].tolist()
    there = [i for i, pair in enumerate(zip(logits, labels, strict=True)) if _fits(*pair)]
    if not there:
        return None
    last = there[-1]
    same = [i for i in there if logits[i].shape == logits[last].shape and np.array_equal(labels[i], labels[last])]
    truth = labels[last]
    values = np.array([_signed(logits[i], truth) for i in same])
    # within a label from the most to the least right at the end
    order = np.lexsort((-np.nan_to_num(values[-1], nan=-np.inf), truth))
    return Examples(
        t.steps[same], values[:, order], truth[order], _classes(logits[last], truth), len(there) - len(same)
    )


def _fits(logits: Any, labels: Any) -> bool:
    if not (isinstance(logits, np.ndarray) and isinstance(labels, np.ndarray)):
        return False
    a_row_each = labels.ndim == 1 and logits.ndim in (1, 2) and len(labels) == len(logits) and logits.size > 0
    return a_row_each and (labels.dtype.kind == "i" or logits.size == labels.size)


def _classes(logits: Floats, labels: NDArray[Any]) -> int:
    if labels.dtype.kind != "i":
        return 0
    return logits.shape[1] if logits.ndim == 2 and logits.shape[1] > 1 else 2


def _signed(logits: Floats, labels: NDArray[Any]) -> Floats:
    """The logit of the true class minus the highest other; of a single logit, itself or its negative; or the error."""
    if labels.dtype.kind != "i":
        return np.asarray(logits.reshape(-1) - labels)
    if logits.ndim == 1 or logits.shape[1] == 1:
        return np.where(np.isin(labels, (0, 1)), logits.reshape(-1) * (2 * labels - 1), np.nan)
    known = (labels >= 0) & (labels < logits.shape[1])
    rows, true = np.arange(len(labels)), np.where(known, labels, 0)
    others = logits.copy()
    others[rows, true] = -np.inf
    return np.where(known, logits[rows, true] - others.max(axis=1), np.nan)


def paint(axes: Axes, steps: NDArray[np.int64], values: Floats, colours: str, norm: Normalize) -> ScalarMappable:
    """Cells over steps (across) and rows (down), neighbouring collections averaged where there are too many."""
    size = math.ceil(len(steps) / MAX_COLUMNS)
    starts = np.arange(0, len(steps), size)
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts, axis=0)
    counts = np.add.reduceat(known.astype(np.int64), starts, axis=0)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    edges = step_edges(steps)
    mesh = axes.pcolormesh(
        np.append(edges[starts], edges[-1]), np.arange(values.shape[1] + 1), np.ma.masked_invalid(means.T),
        cmap=colormaps[colours].with_extremes(bad=ZERO), norm=norm, rasterized=True,
    )  # fmt: skip
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(values.shape[1], 0)
    return mesh


def paint_examples(axes: Axes, found: Examples, small: bool) -> ScalarMappable:
    """Blue above 0, red below; as strong as all but the largest fiftieth."""
    finite = np.abs(found.values[np.isfinite(found.values)])
    reach = float(np.quantile(finite, 0.98)) if len(finite) else 1.0
    mesh = paint(axes, found.steps, found.values, "RdBu", Normalize(-reach or -1.0, reach or 1.0))
    if not found.classes:
        axes.set_yticks([])
        return mesh
    names, first = np.unique(found.labels, return_index=True)
    edges = np.append(first, len(found.labels))
    axes.hlines(edges[1:-1], 0, 1, transform=axes.get_yaxis_transform(), color=INK, linewidth=0.8)
    every = math.ceil(len(names) / (NAMED // 4 if small else NAMED))
    middles = (edges[1:] + edges[:-1]) / 2
    axes.set_yticks(middles[::every], [f"label {name}" for name in names[::every]])
    axes.tick_params(axis="y", length=0)
    return mesh
