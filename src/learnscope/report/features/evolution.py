"""Features of a layer over epochs: the examples in a plane, and the numbers of the layer."""

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
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from learnscope.findings.examples.critical import UNLABELLED
from learnscope.findings.features.feature_course import LevelChanges
from learnscope.reading.gather import Floats, Series
from learnscope.reading.words import count, listed, num
from learnscope.report.features.projection import project
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, head, new_figure, save
from learnscope.report.style import COLOURS, ZERO, finish, legend, lined

MOST_PANELS = 6
FLAT = 0.02
"""Share of its size that an axis of numbers spans at the least."""
LONGEST = 120
"""Bytes of a layer's name in the name of a file, which may have 255 of them."""
LONGEST_SHOWN = 32
"""Letters of a layer's name that fit into a title."""
NAMED_CLASSES = 20
"""Classes that are named in a legend; more have colours in their order."""


@dataclass(frozen=True)
class Kept:
    """The features of an epoch's examples, and their classes where they have some."""

    epoch: int
    features: Floats
    labels: NDArray[np.int64] | None


@dataclass(frozen=True)
class Panel:
    """Numbers that share an axis: by name, how they are called."""

    title: str
    lines: Mapping[str, str]


PANELS = (
    Panel("silhouette score", {"silhouette": "silhouette score"}),
    Panel("between-class / within-class scatter", {"separability": "class separability"}),
    Panel("linear probe, held-out accuracy", {"linear_probe": "accuracy", "linear_probe_chance": "largest class"}),
    Panel("distance of two examples", {"between_distance": "of two classes", "within_distance": "of one class"}),
    Panel("directions in use", {"effective_rank": "effective rank", "rankme": "RankMe"}),
    Panel("unbiased linear CKA", {"cka_first": "with the first epoch", "cka_previous": "with the epoch before"}),
)


def file_part(layer: str) -> str:
    """A layer's name as a part of a file's; one that had to be changed ends in digits of its own.

    >>> file_part("transformer.h.0"), file_part("a/b"), file_part("")
    ('transformer.h.0', 'a_b-c14cdd', 'model-e3b0c4')
    """
    short = layer.encode()[:LONGEST].decode(errors="ignore")
    part = re.sub(r"[^\w.-]+", "_", short).strip("._") or "model"
    return part if part == layer else f"{part}-{hashlib.sha256(layer.encode()).hexdigest()[:6]}"


def _named(layer: str) -> str:
    return f"layer {shorten(layer, LONGEST_SHOWN)}" if layer else "the model"


def plot_plane(kept: Sequence[Kept], layer: str, method: str, folder: Path, said: str = "") -> list[Path]:
    """`features_<layer>_<method>.png`; its path."""
    path = folder / f"features_{file_part(layer)}_{method}.png"
    save(draw_plane(kept, layer, method, said), path)
    return [path]


def draw_plane(kept: Sequence[Kept], layer: str, method: str, said: str = "") -> Figure:
    """At most six of the epochs, spread evenly, in one plane and one scale."""
    shown = _spread(kept)
    plane = project([one.features for one in shown], method)
    columns = 2 if len(shown) == 4 else min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(1.6 + (3.1 if columns > 1 else 4.4) * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    colours = _class_colours([one.labels for one in shown])
    size = 14.0 if max(len(one.features) for one in shown) <= 1000 else 6.0
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.set_visible(False)
            continue
        one, points = shown[place], plane.points[place]
        axes.scatter(*points.T, c=_colours(one, colours), s=size, alpha=0.75, linewidths=0)
        axes.set_title(f"epoch {one.epoch:,}", loc="left", fontsize=10, color=INK)
        below = place + columns >= len(shown)
        finish(axes, plane.axes[0] if below else "", plane.axes[1] if place % columns == 0 else "")
        axes.tick_params(labelbottom=below)
        axes.grid(color="#EEEEEE", linewidth=0.8)
        axes.set_axisbelow(True)
    _class_legend(figure, colours)
    facts = [
        count(len(shown[-1].features), "example"),
        _of_epochs(kept, shown),
        _how_fitted(plane.explained, method, len(shown)),
    ]
    head(figure, f"Features of {_named(layer)}", "; ".join(part for part in [*facts, said] if part))
    return figure


def _spread(kept: Sequence[Kept]) -> list[Kept]:
    if len(kept) <= MOST_PANELS:
        return list(kept)
    return [kept[round(i * (len(kept) - 1) / (MOST_PANELS - 1))] for i in range(MOST_PANELS)]


def _of_epochs(kept: Sequence[Kept], shown: Sequence[Kept]) -> str:
    return f"{len(shown)} of {len(kept)} epochs" if len(shown) < len(kept) else count(len(kept), "epoch")


def _how_fitted(explained: tuple[float, float] | None, method: str, panels: int) -> str:
    together = " fitted to all panels together" if panels > 1 else ""
    if explained is None:
        return f"{method.upper()}{together}; its distances are no measure"
    return f"one plane{together}, with {sum(explained):.0%} of {'their' if panels > 1 else 'the'} variance"


def _class_colours(labels: Sequence[NDArray[np.int64] | None]) -> dict[int, str]:
    known = [part for part in labels if part is not None]
    classes = [int(c) for c in np.unique(np.concatenate(known))] if known else []
    classes = [c for c in classes if c != UNLABELLED]
    if len(classes) <= len(COLOURS):
        return dict(zip(classes, COLOURS, strict=False))
    if len(classes) <= NAMED_CLASSES:
        return {c: to_hex(colormaps["tab20"](place)) for place, c in enumerate(classes)}
    scale = Normalize(0, len(classes) - 1)
    return {c: to_hex(colormaps["turbo"](scale(place))) for place, c in enumerate(classes)}


def _colours(one: Kept, colours: Mapping[int, str]) -> list[str]:
    if one.labels is None:
        return [COLOURS[0]] * len(one.features)
    return [colours.get(label, ZERO) for label in one.labels.tolist()]


def _class_legend(figure: Figure, colours: Mapping[int, str]) -> None:
    classes = list(colours)
    if len(classes) > NAMED_CLASSES:  # a few of them say how the colours run
        classes = [classes[round(i * (len(classes) - 1) / 7)] for i in range(8)]
    if not classes:
        return
    marks = [Line2D([], [], marker="o", linestyle="", color=colours[c], label=f"class {c}") for c in classes]
    figure.legend(handles=marks, loc="lower center", ncols=min(len(marks), 8), fontsize=10, frameon=False,
                  columnspacing=1.2, handletextpad=0.2)  # fmt: skip


def plot_numbers(
    courses: Mapping[str, Series], changes: Mapping[str, LevelChanges], layer: str, folder: Path
) -> list[Path]:
    """`metrics_<layer>.png`; its path."""
    path = folder / f"metrics_{file_part(layer)}.png"
    save(draw_numbers(courses, changes, layer), path)
    return [path]


def draw_numbers(courses: Mapping[str, Series], changes: Mapping[str, LevelChanges], layer: str) -> Figure:
    """A panel for each kind of number that was measured, with its changes of level."""
    panels = [panel for panel in PANELS if any(len(courses[name].finite) for name in panel.lines if name in courses)]
    missing = [panel for panel in PANELS if panel not in panels]
    columns = 2 if len(panels) > 1 else 1
    rows = max(math.ceil(len(panels) / columns), 1)
    figure = new_figure(1.7 + 2.35 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        _draw(axes, panels[place], courses, changes)
        finish(axes, "epoch" if place + columns >= len(panels) else "")
        axes.set_title(panels[place].title, loc="left", fontsize=10, color=INK)
    if not panels:
        grid[0, 0].set_visible(True)
        grid[0, 0].text(0.5, 0.5, "nothing was measured", ha="center", transform=grid[0, 0].transAxes, color=INK)
    head(figure, f"Numbers of {_named(layer)} over the epochs", "; ".join(_facts(courses, changes, missing)))
    return figure


def _draw(axes: Axes, panel: Panel, courses: Mapping[str, Series], changes: Mapping[str, LevelChanges]) -> None:
    for place, (name, label) in enumerate(panel.lines.items()):
        known = courses[name].finite if name in courses else None
        if known is None or not len(known):
            continue
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.6, "color": COLOURS[place]}
        if name == "linear_probe_chance":
            style = {"linestyle": "--", "linewidth": 1.2, "color": COLOURS[5]}
        axes.plot(known.steps, known.values, label=label, **style)
        if name in changes:
            labels = [f"level changes (p = {num(changes[name].p_value)})"]  # one in the legend for all of them
            for epoch in changes[name].epochs:
                axes.axvline(epoch, color=style["color"], linestyle=":", label=labels.pop() if labels else None)
    lined(axes, 6)
    _not_too_close(axes)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        legend(axes)


def _not_too_close(axes: Axes) -> None:
    """A number that stays the same is a flat line: rounding is not drawn as if it were a change."""
    low, high = axes.dataLim.intervaly
    least = FLAT * max(abs(low), abs(high))
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)
    axes.ticklabel_format(axis="y", useOffset=False)


def _facts(courses: Mapping[str, Series], changes: Mapping[str, LevelChanges], missing: Sequence[Panel]) -> list[str]:
    epochs = max((len(series) for series in courses.values()), default=0)
    facts = [count(epochs, "epoch")]
    marked = [f"{name} at {listed([str(e) for e in one.epochs], 6)}" for name, one in changes.items() if one.epochs]
    if changes:
        facts.append(f"changes of level: {', '.join(marked) if marked else 'none'}")
    for panel in missing:
        name = next(iter(panel.lines))
        why = dict.fromkeys(status or "not measured" for status in courses[name].status) if name in courses else {}
        facts.append(f"no {panel.title}: {next(iter(why), 'not measured')}")
    return facts
