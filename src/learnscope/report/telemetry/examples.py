"""The outputs for each held-out example over the steps: the margin of its true class, or its error."""

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
from learnscope.report.heatmap import paint_means
from learnscope.report.layout import INK
from learnscope.report.style import ZERO
from learnscope.report.telemetry.data import HOLDOUT, Telemetry

NAMED = 16
"""Labels that are named at most."""


@dataclass(frozen=True)
class Examples:
    """A number for every collection (down) and held-out example (across), grouped by label."""

    steps: NDArray[np.int64]
    values: Floats
    labels: NDArray[Any]
    classes: int
    """How many; 0 where the labels are not classes."""
    left_out: int
    """Collections with other held-out examples than the last."""

    @property
    def facts(self) -> list[str]:
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
    usable = [i for i, pair in enumerate(zip(logits, labels, strict=True)) if _fits(*pair)]
    if not usable:
        return None
    last = usable[-1]
    same = [i for i in usable if logits[i].shape == logits[last].shape and np.array_equal(labels[i], labels[last])]
    truth = labels[last]
    values = np.array([_signed(logits[i], truth) for i in same])
    # within a label by the last value, the largest first
    order = np.lexsort((-np.nan_to_num(values[-1], nan=-np.inf), truth))
    columns = logits[last].shape[1] if logits[last].ndim == 2 else 1
    classes = max(columns, 2) if truth.dtype.kind == "i" else 0
    return Examples(t.steps[same], values[:, order], truth[order], classes, left_out=len(usable) - len(same))


def _fits(logits: Any, labels: Any) -> bool:
    if not (isinstance(logits, np.ndarray) and isinstance(labels, np.ndarray)):
        return False
    row_for_each = labels.ndim == 1 and logits.ndim in (1, 2) and len(labels) == len(logits) and logits.size > 0
    return row_for_each and (labels.dtype.kind == "i" or logits.size == labels.size)


def _signed(logits: Floats, labels: NDArray[Any]) -> Floats:
    """The true class's logit minus the highest other; a single logit, negated for class 0; for regression the error."""
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
    """Cells over steps (across) and rows (down), without lines between them; grey where there is no value."""
    colour_map = colormaps[colours].with_extremes(bad=ZERO)
    return paint_means(axes, steps, values, cmap=colour_map, norm=norm, edgecolors="none", linewidth=0.0)[0]


def paint_examples(shown: Examples, axes: Axes, small: bool) -> ScalarMappable:
    """Blue above 0, red below; the strongest colours are for the largest 2 % of sizes."""
    finite = np.abs(shown.values[np.isfinite(shown.values)])
    reach = float(np.quantile(finite, 0.98)) if len(finite) else 1.0
    mesh = paint(axes, shown.steps, shown.values, "RdBu", Normalize(-reach or -1.0, reach or 1.0))
    if not shown.classes:
        axes.set_yticks([])
        return mesh
    names, first = np.unique(shown.labels, return_index=True)
    edges = np.append(first, len(shown.labels))
    axes.hlines(edges[1:-1], 0, 1, transform=axes.get_yaxis_transform(), color=INK, linewidth=0.8)
    every = math.ceil(len(names) / (NAMED // 4 if small else NAMED))
    middles = (edges[1:] + edges[:-1]) / 2
    axes.set_yticks(middles[::every], [f"label {name}" for name in names[::every]])
    axes.tick_params(axis="y", length=0)
    return mesh
