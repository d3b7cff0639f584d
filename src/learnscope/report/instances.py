"""Figures with a row of axes for every instance of a probe: what they measured differently is not one curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.quantities import Quantities, Quantity
from learnscope.reading.gather import Floats, labels_of, rows
from learnscope.reading.words import count
from learnscope.report.layout import INK, head, new_figure
from learnscope.report.style import log_ticks, plain
from learnscope.store.frame import FIXED_COLUMNS
from learnscope.store.reader import RunReader

MOST = 4
"""Instances that a figure shows."""
DOTS = 60
"""Points up to which each has a mark."""


@dataclass(frozen=True)
class Part:
    """One pair of axes: its title, how to draw it, and what it adds to the heading."""

    title: str
    draw: Callable[[Axes], None]
    facts: Sequence[str] = ()
    zeros: bool = False
    """Whether it shows zeros at the foot of a logarithmic scale."""


def by_instance(
    reader: RunReader,
    probe: type[Quantities],
    title: str,
    parts: Callable[[RunReader, str], Sequence[Part]],
    height: float = 3.6,
) -> Figure | None:
    instances = [(label, drawn) for label in labels_of(reader, probe) if (drawn := parts(reader, label))]
    if not instances:
        return None
    shown = instances[:MOST]
    figure = new_figure(1.1 + height * len(shown))
    grid = figure.subplots(len(shown), max(len(row) for _, row in shown), squeeze=False)
    facts = []
    for all_axes, (label, row) in zip(grid, shown, strict=True):
        name = f"{label}: " if len(instances) > 1 else ""
        for axes, part in zip_longest(all_axes, row):
            if part is None:
                axes.set_visible(False)
                continue
            part.draw(axes)
            axes.set_title(f"{name}{part.title}", loc="left", fontsize=10, color=INK)
            names = axes.get_legend_handles_labels()[1]
            if names:  # above the data, which make room for it
                columns = 2 if len(names) > 3 else 1
                stretch(axes, "y", above=0.08 * math.ceil(len(names) / columns) + 0.03)
                axes.legend(fontsize=9.5, framealpha=0.8, edgecolor="none", loc="upper right", ncols=columns,
                            columnspacing=1.2)  # fmt: skip
        own = "; ".join(fact for part in row for fact in part.facts if fact)
        facts.append(f"{name}{own}" if own else "")
    if any(part.zeros for _, row in shown for part in row):
        facts.append("open marks: 0, which a logarithmic scale cannot show")
    if len(instances) > len(shown):
        facts.append(f"{count(len(instances) - len(shown), 'more instance')} left out")
    head(figure, title, "; ".join(filter(None, facts)))
    return figure


def stretch(axes: Axes, which: str, below: float = 0.0, above: float = 0.0) -> None:
    """Leave these shares of the axes free."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    scale = axis.get_transform()
    low, high = scale.transform(np.array(axis.get_view_interval()))
    length = (high - low) / (1 - below - above)
    ends = scale.inverted().transform(np.array([low - below * length, high + above * length]))
    (axes.set_xlim if which == "x" else axes.set_ylim)(float(ends[0]), float(ends[1]))


def numbers(reader: RunReader, label: str, quantity: Quantity, *by: str) -> pd.DataFrame:
    """A model-wide number of one instance, one for each step and combination of the labels `by`, in their order."""
    frame = rows(reader, quantity, probe=label).reindex(columns=[*FIXED_COLUMNS, *by])
    frame = frame.dropna(subset=list(by)) if by else frame
    return frame.drop_duplicates(["step", *by], keep="last").sort_values(["step", *by], kind="stable")


def without_value(values: pd.Series[float], what: str) -> str:
    missing = int(values.isna().sum())
    return f"{missing:,} of {count(len(values), what)} without a value" if missing else ""


def span(reader: RunReader, label: str, step: int) -> str:
    """The steps between which the update lies that was examined at this step."""
    spans = [record.notes.get("span") for record in reader.records(label) if record.step == step]
    return f"steps {spans[-1][0]:,} to {spans[-1][1]:,}" if spans and spans[-1] else f"step {step:,}"


def has_zeros(values: pd.Series[float] | Floats) -> bool:
    return bool((values <= 0).any() and (values > 0).any())


def log_foot(parts: Sequence[Floats]) -> float | None:
    """Where zeros stand on a logarithmic scale: below the smallest other number. None without such a number."""
    above = np.concatenate([np.empty(0), *(np.ravel(part) for part in parts)])
    above = above[np.isfinite(above) & (above > 0)]
    if not len(above):
        return None
    return float(above.min() / max(3.0, (above.max() / above.min()) ** 0.15))


def at_foot(values: Floats, foot: float | None) -> Floats:
    """Zeros moved to where they are shown."""
    return values if foot is None else np.where(values <= 0, foot, values)


def log_axis(axes: Axes, which: str, parts: Sequence[Floats], foot: float | None, unit: str = "") -> None:
    """A logarithmic scale with a tick for zeros, and room for labels below.

    Without a number above 0 the scale stays linear. With `unit` "%" the numbers are shares.
    """
    values = np.concatenate([np.ravel(part) for part in parts])
    values = values[np.isfinite(values)]
    axis = axes.xaxis if which == "x" else axes.yaxis
    if foot is None:
        axis.set_ticks([0], labels=["0"])
        return
    zeros = bool((values <= 0).any())
    above = values[values > 0]
    low, high = float(above.min()), float(above.max())
    least = foot if zeros else low
    room = max((high / least) ** 0.12, 1.4)
    ticks = log_ticks(low / room**0.5, high * room**0.5, 5 if unit else 7)
    if zeros:
        ticks = [tick for tick in ticks if tick > foot * (high / foot) ** 0.08]
    scale = 100 if unit == "%" else 1
    names = [f"{plain(scale * tick)} {unit}".strip() for tick in ticks]
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_ticks([foot, *ticks] if zeros else ticks, labels=["0", *names] if zeros else names)
    axes.minorticks_off()
    (axes.set_xlim if which == "x" else axes.set_ylim)(least / room, high * room)


def points(
    axes: Axes, x: Floats, y: Floats, foot: float | None, colour: str, label: str, dash: str = "-", width: float = 1.8
) -> None:
    """A line with a mark for every number, open where it is a zero shown at the foot."""
    shown = at_foot(y, foot)
    single = np.isfinite(shown).sum() == 1
    mark = "o" if single or len(x) <= DOTS else ""
    axes.plot(x, shown, color=colour, linestyle=dash, linewidth=width, marker=mark, markersize=5, label=label)
    zeros = (y <= 0) & (foot is not None)
    if zeros.any():
        axes.plot(x[zeros], shown[zeros], marker="o", markersize=6, markerfacecolor="white", color=colour,
                  linestyle="none", zorder=3)  # fmt: skip
