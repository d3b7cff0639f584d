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
from learnscope.reading.gather import Floats, labels_of
from learnscope.reading.words import count
from learnscope.report.layout import INK, head, new_figure
from learnscope.report.style import log_ticks, plain
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
    """A row for each instance of the probe that has something to draw."""
    every = {label: found for label in labels_of(reader, probe) if (found := parts(reader, label))}
    if not every:
        return None
    shown = dict(list(every.items())[:MOST])
    figure = new_figure(1.1 + height * len(shown))
    grid = figure.subplots(len(shown), max(map(len, shown.values())), squeeze=False)
    several = len(every) > 1
    facts = []
    for row, (label, found) in zip(grid, shown.items(), strict=True):
        for axes, part in zip_longest(row, found):
            if part is None:
                axes.set_visible(False)
                continue
            part.draw(axes)
            axes.set_title(f"{label}: {part.title}" if several else part.title, loc="left", fontsize=10, color=INK)
            _legend_above(axes)
        said = "; ".join(fact for part in found for fact in part.facts if fact)
        facts.append(f"{label}: {said}" if several and said else said)
    if any(part.zeros for found in shown.values() for part in found):
        facts.append("open marks: 0, which a logarithmic scale cannot show")
    if len(every) > len(shown):
        facts.append(f"{count(len(every) - len(shown), 'more instance')} left out")
    head(figure, title, "; ".join(filter(None, facts)))
    return figure


def _legend_above(axes: Axes) -> None:
    """A legend above the data, which make room for it."""
    names = axes.get_legend_handles_labels()[1]
    if not names:
        return
    columns = 2 if len(names) > 3 else 1
    stretch(axes, "y", above=0.08 * math.ceil(len(names) / columns) + 0.03)
    axes.legend(fontsize=9.5, framealpha=0.8, edgecolor="none", loc="upper right", ncols=columns, columnspacing=1.2)


def stretch(axes: Axes, which: str, below: float = 0.0, above: float = 0.0) -> None:
    """Leave these shares of the axes free of what they show now."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    scale = axis.get_transform()
    low, high = scale.transform(np.array(axis.get_view_interval()))
    whole = (high - low) / (1 - below - above)
    ends = scale.inverted().transform(np.array([low - below * whole, high + above * whole]))
    (axes.set_xlim if which == "x" else axes.set_ylim)(float(ends[0]), float(ends[1]))


def numbers(reader: RunReader, label: str, quantity: Quantity, *by: str) -> pd.DataFrame:
    """A model-wide number of one instance in the order of steps, one for each step and combination of labels."""
    frame = reader.frame(label, quantity.name, "model")
    for column in by:
        if column not in frame:
            return frame.iloc[:0].assign(**dict.fromkeys(by, np.nan))
        frame = frame[frame[column].notna()]
    return frame.drop_duplicates(["step", *by], keep="last").sort_values(["step", *by], kind="stable")


def without_value(frame: pd.DataFrame, what: str) -> str:
    missing = int(frame["value"].isna().sum())
    return f"{missing:,} of {count(len(frame), what)} without a value" if missing else ""


def span(reader: RunReader, label: str, step: int) -> str:
    """Between which steps the update lies that was looked at in this step."""
    spans = [record.notes.get("span") for record in reader.records(label) if record.step == step]
    return f"steps {spans[-1][0]:,} to {spans[-1][1]:,}" if spans and spans[-1] else f"step {step:,}"


def has_zeros(values: pd.Series[float] | Floats) -> bool:
    """Whether there are zeros that a logarithmic scale of the others must show at its foot."""
    return bool((values <= 0).any() and (values > 0).any())


def log_foot(parts: Sequence[Floats]) -> float | None:
    """Where zeros stand on a logarithmic scale: below the smallest other number. None without such a number."""
    values = np.concatenate([np.ravel(part) for part in parts]) if parts else np.empty(0)
    above = values[np.isfinite(values) & (values > 0)]
    if not len(above):
        return None
    low, high = float(above.min()), float(above.max())
    return float(low / max(3.0, (high / low) ** 0.15))


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
