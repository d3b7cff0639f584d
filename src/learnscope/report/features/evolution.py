"""Features of a layer over epochs: the examples projected onto a plane, and the numbers of the layer."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from learnscope.findings.examples.critical import UNLABELLED
from learnscope.findings.features.feature_course import Transitions
from learnscope.quantities import Quantity
from learnscope.quantities.features import FeatureEvolution as Q
from learnscope.reading.gather import Floats, Series
from learnscope.reading.words import count, listed, num
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, head, new_figure, panels_on, save_all
from learnscope.report.style import COLOURS, ZERO, finish, guides, legend, lined

MOST_PANELS = 6
FLAT = 0.02
"""An axis spans at least this share of its largest number."""
LONGEST = 120
"""Most bytes of a layer's name in a file name, which may have 255."""
LONGEST_SHOWN = 32
NAMED_CLASSES = 20
"""Most classes in a legend; of more, some are named."""
METHODS = ("pca", "umap")
NEIGHBOURS = 15
"""Of umap, which needs more points than this."""


@dataclass(frozen=True)
class EpochFeatures:
    """The features of an epoch's examples, and their classes where they have some."""

    epoch: int
    features: Floats
    labels: NDArray[np.int64] | None


PANELS = {
    "silhouette score": {Q.silhouette: "silhouette score"},
    "between-class / within-class scatter": {Q.separability: "class separability"},
    "linear probe, held-out accuracy": {Q.linear_probe: "accuracy", Q.linear_probe_chance: "largest class"},
    "distance of two examples": {Q.between_distance: "of two classes", Q.within_distance: "of one class"},
    "directions in use": {Q.effective_rank: "effective rank", Q.rankme: "RankMe"},
    "unbiased linear CKA": {Q.cka_first: "with the first epoch", Q.cka_previous: "with the epoch before"},
}
"""Numbers that share axes, with their labels, by the title of the axes."""


def file_part(layer: str) -> str:
    """A layer's name for use in a file name; one that had to be changed ends in digits of its hash.

    >>> file_part("transformer.h.0"), file_part("a/b"), file_part("")
    ('transformer.h.0', 'a_b-c14cdd', 'model-e3b0c4')
    """
    short = layer.encode()[:LONGEST].decode(errors="ignore")
    part = re.sub(r"[^\w.-]+", "_", short).strip("._") or "model"
    return part if part == layer else f"{part}-{hashlib.sha256(layer.encode()).hexdigest()[:6]}"


def _named(layer: str) -> str:
    return f"layer {shorten(layer, LONGEST_SHOWN)}" if layer else "the model"


def plot_plane(measured: Sequence[EpochFeatures], layer: str, method: str, folder: Path, note: str = "") -> list[Path]:
    """Write `features_<layer>_<method>.png`; returns its path."""
    return save_all({f"features_{file_part(layer)}_{method}": draw_plane(measured, layer, method, note)}, folder)


def draw_plane(measured: Sequence[EpochFeatures], layer: str, method: str, note: str = "") -> Figure:
    """At most six of the epochs, evenly spread, on the same plane and scale."""
    shown, last = list(measured), len(measured) - 1
    if len(measured) > MOST_PANELS:
        shown = [measured[round(i * last / (MOST_PANELS - 1))] for i in range(MOST_PANELS)]
    plane = project([epoch.features for epoch in shown], method)
    columns = 2 if len(shown) == 4 else min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(1.6 + (3.1 if columns > 1 else 4.4) * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    colours = _class_colours([epoch.labels for epoch in shown])
    size = 14.0 if max(len(epoch.features) for epoch in shown) <= 1000 else 6.0
    for axes, (epoch, points), lowest in panels_on(grid, list(zip(shown, plane.points, strict=True))):
        of_class = None if epoch.labels is None else [colours.get(label, ZERO) for label in epoch.labels.tolist()]
        axes.scatter(points[:, 0], points[:, 1], c=of_class or COLOURS[0], s=size, alpha=0.75, linewidths=0)
        axes.set_title(f"epoch {epoch.epoch:,}", loc="left", fontsize=10, color=INK)
        finish(axes, plane.axes[0] if lowest else "", plane.axes[1] if axes in grid[:, 0] else "")
        axes.tick_params(labelbottom=lowest)
        guides(axes, "both", "#EEEEEE")
    _class_legend(figure, colours)
    epochs = f"{len(shown)} of {len(measured)} epochs" if len(shown) < len(measured) else count(len(measured), "epoch")
    together, of = (" fitted to all panels together", "their") if len(shown) > 1 else ("", "the")
    fit = f"{method.upper()}{together}; its distances are no measure"
    if plane.explained is not None:
        fit = f"one plane{together}, with {sum(plane.explained):.0%} of {of} variance"
    facts = [count(len(shown[-1].features), "example"), epochs, fit, note]
    head(figure, f"Features of {_named(layer)}", "; ".join(filter(None, facts)))
    return figure


def _class_colours(labels: Sequence[NDArray[np.int64] | None]) -> dict[int, str]:
    classes = sorted({int(label) for part in labels if part is not None for label in np.unique(part)} - {UNLABELLED})
    if len(classes) <= len(COLOURS):
        return dict(zip(classes, COLOURS, strict=False))
    if len(classes) <= NAMED_CLASSES:
        return {c: to_hex(colormaps["tab20"](place)) for place, c in enumerate(classes)}
    return {c: to_hex(colormaps["turbo"](place / (len(classes) - 1))) for place, c in enumerate(classes)}


def _class_legend(figure: Figure, colours: Mapping[int, str]) -> None:
    classes = list(colours)
    if len(classes) > NAMED_CLASSES:  # eight show the order of the colours
        classes = [classes[round(i * (len(classes) - 1) / 7)] for i in range(8)]
    if not classes:
        return
    marks = [Line2D([], [], marker="o", linestyle="", color=colours[c], label=f"class {c}") for c in classes]
    figure.legend(handles=marks, loc="lower center", ncols=min(len(marks), 8), fontsize=10, frameon=False,
                  columnspacing=1.2, handletextpad=0.2)  # fmt: skip


def plot_numbers(
    courses: Mapping[Quantity, Series], changes: Mapping[Quantity, Transitions], layer: str, folder: Path
) -> list[Path]:
    """Write `metrics_<layer>.png`; returns its path."""
    return save_all({f"metrics_{file_part(layer)}": draw_numbers(courses, changes, layer)}, folder)


def draw_numbers(courses: Mapping[Quantity, Series], changes: Mapping[Quantity, Transitions], layer: str) -> Figure:
    """A panel for each kind of number that was measured, with its jumps."""
    panels = [title for title, lines in PANELS.items() if any(len(courses[q].finite) for q in lines if q in courses)]
    columns = 2 if len(panels) > 1 else 1
    rows = max(math.ceil(len(panels) / columns), 1)
    figure = new_figure(1.7 + 2.35 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, title, lowest in panels_on(grid, panels):
        _draw(axes, PANELS[title], courses, changes)
        finish(axes, "epoch" if lowest else "")
        axes.set_title(title, loc="left", fontsize=10, color=INK)
    if not panels:
        grid[0, 0].set_visible(True)
        grid[0, 0].text(0.5, 0.5, "nothing was measured", ha="center", transform=grid[0, 0].transAxes, color=INK)
    head(figure, f"Numbers of {_named(layer)} over the epochs", "; ".join(_facts(courses, changes, panels)))
    return figure


def _draw(
    axes: Axes, lines: Mapping[Quantity, str], courses: Mapping[Quantity, Series],
    changes: Mapping[Quantity, Transitions],
) -> None:  # fmt: skip
    for place, (quantity, label) in enumerate(lines.items()):
        finite = courses[quantity].finite if quantity in courses else None
        if finite is None or not len(finite):
            continue
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.6, "color": COLOURS[place]}
        if quantity == Q.linear_probe_chance:
            style = {"linestyle": "--", "linewidth": 1.2, "color": COLOURS[5]}
        axes.plot(finite.steps, finite.values, label=label, **style)
        if quantity in changes:
            labels = [f"jumps (p = {num(changes[quantity].p_value)})"]  # one entry in the legend for all
            for epoch in changes[quantity].epochs:
                axes.axvline(epoch, color=style["color"], linestyle=":", label=labels.pop() if labels else None)
    lined(axes, 6)
    low, high = axes.dataLim.intervaly
    least = FLAT * max(abs(low), abs(high))
    if high - low < least:  # a nearly constant number: rounding must not look like a change
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)
    axes.ticklabel_format(axis="y", useOffset=False)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        legend(axes)


def _facts(
    courses: Mapping[Quantity, Series], changes: Mapping[Quantity, Transitions], panels: Sequence[str]
) -> list[str]:
    epochs = max((len(series) for series in courses.values()), default=0)
    facts = [count(epochs, "epoch")]
    marked = [f"{q.name} at {listed([str(e) for e in at.epochs], 6)}" for q, at in changes.items() if at.epochs]
    if changes:
        facts.append(f"jumps: {', '.join(marked) if marked else 'none'}")
    for title, lines in PANELS.items():
        if title not in panels:
            first = courses.get(next(iter(lines)))
            reason = first.status[0] if first is not None and len(first) else None
            facts.append(f"no {title}: {reason or 'not measured'}")
    return facts


@dataclass(frozen=True)
class Plane:
    """Points [n, 2] of each part, and the names of the axes."""

    points: list[Floats]
    axes: tuple[str, str]
    explained: tuple[float, float] | None
    """Share of the variance of all parts that each axis explains; None for umap."""


def project(parts: Sequence[Floats], method: str) -> Plane:
    """Project parts [n, d], finite and with the same d, fitted together."""
    rows = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    plane, explained = _pca(rows) if method == "pca" else (_umap(rows), None)
    names = ("UMAP 1", "UMAP 2")
    if explained is not None:
        names = (f"component 1 ({explained[0]:.0%})", f"component 2 ({explained[1]:.0%})")
    ends = np.cumsum([len(part) for part in parts])[:-1]
    return Plane([np.ascontiguousarray(part) for part in np.split(plane, ends)], names, explained)


def _pca(rows: Floats) -> tuple[Floats, tuple[float, float]]:
    """The two leading principal components, from the smaller of XᵀX and XXᵀ; the largest entry of each is positive."""
    size = float(np.abs(rows).max(initial=0.0)) or 1.0  # so that squares neither underflow nor overflow
    x = rows / size
    x = x - x.mean(0)
    tall = x.shape[1] <= x.shape[0]
    values, vectors = np.linalg.eigh(x.T @ x if tall else x @ x.T)
    values, vectors = np.maximum(values[::-1][:2], 0), vectors[:, ::-1][:, :2]
    plane = np.zeros((len(x), 2))
    plane[:, : len(values)] = x @ vectors if tall else vectors * np.sqrt(values)
    largest = plane[np.abs(plane).argmax(0), np.arange(2)]
    total = float((x**2).sum())
    shares = [float(value) / total if total > 0 else 0.0 for value in values] + [0.0]
    return plane * np.where(largest < 0, -1.0, 1.0) * size, (shares[0], shares[1])


def _umap(rows: Floats) -> Floats:
    try:
        from umap import UMAP  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError("method='umap' needs a package that is not installed: pip install umap-learn") from error
    if len(rows) <= NEIGHBOURS:
        raise ValueError(f"umap needs more than {NEIGHBOURS} points, and there are {len(rows)}: use method='pca'")
    # reproducible only with a seed and one thread
    plane = UMAP(n_neighbors=NEIGHBOURS, random_state=0, n_jobs=1).fit_transform(rows)
    return np.asarray(plane, dtype=np.float64)
