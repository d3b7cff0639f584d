"""Accuracy by group of examples; where groups suggest a class, those in line with it and those in conflict."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.reading.gather import Series
from learnscope.reading.group_curves import GroupCurves, attribute_numbers, group_curves
from learnscope.reading.ordering import plural
from learnscope.reading.words import num, percent
from learnscope.report.broken import breaks, patch
from learnscope.report.heatmap import (
    MAX_COLUMNS,
    body_height,
    cell_style,
    colour_bar,
    measured,
    name_rows,
    shorten,
    tick_steps,
)
from learnscope.report.layout import QUIET, head, margins, new_figure
from learnscope.report.lines import curve
from learnscope.report.style import COLOURS, finish, legend, lined, step_edges
from learnscope.store.reader import RunReader

LINES = len(COLOURS)
"""Groups up to which each has a line; more become rows of a heatmap."""
LONGEST = 50
"""Letters of a group's name in a legend."""
ABOVE = 3.0
"""Inches for the axes of aligned and conflicting examples."""


def group_figure(reader: RunReader) -> Figure | None:
    """The groups of test data, or of what else there are groups of."""
    found = group_curves(reader)
    if not found or not np.isfinite(found[0].accuracies.values).any():
        return None
    curves = found[0]
    numbers = attribute_numbers(reader, curves.probe)
    above = len(numbers) > 1  # of one measurement, the heading says all
    few = len(curves.accuracies.scopes) <= LINES
    body = 2.6 if few else body_height(len(curves.accuracies.scopes), row=0.22, most=5.0)
    figure = new_figure(body + 1.7 + (ABOVE if above else 0.0))
    spec = figure.add_gridspec(
        2 if above else 1, 1 if few else 2, height_ratios=[ABOVE - 0.6, body] if above else [body]
    )
    margins(figure).bar = not few
    top = figure.add_subplot(spec[0, 0]) if above else None
    axes = figure.add_subplot(spec[-1, 0], sharex=top)
    notes = ""
    if few:
        _lines(axes, curves)
    else:
        notes = _rows(figure, axes, figure.add_subplot(spec[-1, 1]), curves, body)
    broken = breaks(reader)
    if top is not None:
        _sides(top, numbers)
        broken.shade(top, label=False)
    if few:
        broken.shade(axes, label=False)
    else:
        broken.edge(axes)
    if broken.spans:
        figure.legend(handles=[patch(broken, 0.25 if few else 1.0)], loc="lower center", fontsize=10, frameon=False)
    head(figure, f"Accuracy by {curves.word}", _facts(curves, numbers) + notes)
    return figure


def _sides(axes: Axes, numbers: pd.DataFrame) -> None:
    """Aligned and conflicting examples with their intervals, and how often the group is what is predicted."""
    steps = numbers.index.to_numpy(np.int64)
    for name, colour, said in (
        ("aligned_accuracy", COLOURS[0], "group suggests the class"),
        ("conflicting_accuracy", COLOURS[1], "group suggests another"),
    ):
        low, high = numbers[f"{name}_low"], numbers[f"{name}_high"]
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        curve(axes, _series(numbers, name), colour, said, smooth=False, markers=True, width=2.4)
    if numbers["classes"].iloc[-1] > 2:  # of two, all that is wrong is what the group suggests
        curve(
            axes, _series(numbers, "attribute_following"), COLOURS[3], "… and it is predicted", smooth=False, dash="--"
        )
        curve(axes, _series(numbers, "chance_following"), QUIET, "the same by chance", smooth=False, dash=":")
    lined(axes)
    finish(axes, y="accuracy, share")
    axes.tick_params(labelbottom=False)
    axes.set_ylim(-0.02, 1.03)
    axes.set_title(" ", loc="left", fontsize=10)  # room for the legend, which would hide some curve anywhere inside
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=10, frameon=False, borderaxespad=0.1)


def _series(numbers: pd.DataFrame, name: str) -> Series:
    values = numbers[name].to_numpy(np.float64)
    return Series(numbers.index.to_numpy(np.int64), values, [None] * len(values))


def _lines(axes: Axes, curves: GroupCurves) -> None:
    found = curves.accuracies
    for number, scope in enumerate(found.scopes):
        one = Series(found.steps, found.values[:, number], [None] * len(found.steps))
        n = curves.examples.get(scope)
        named = f"{curves.word} {shorten(scope, LONGEST)}" + (f" (n = {n:,})" if n is not None else "")
        colour = COLOURS[(number + 2) % LINES]  # the first two are those of the axes above
        curve(axes, one, colour, named, smooth=False, markers=True)
    lined(axes)
    finish(axes, x="step", y="accuracy")
    axes.set_ylim(-0.02, 1.03)
    legend(axes)


def _rows(figure: Figure, axes: Axes, beside: Axes, curves: GroupCurves, body: float) -> str:
    """A heatmap; a column is the mean of neighbouring measurements where these are too many."""
    found = curves.accuracies
    size = math.ceil(len(found.steps) / MAX_COLUMNS)
    starts = np.arange(0, len(found.steps), size)
    known = np.isfinite(found.values)
    sums = np.add.reduceat(np.where(known, found.values, 0.0), starts, axis=0)
    counts = np.add.reduceat(known.astype(np.int64), starts, axis=0)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    edges = step_edges(found.steps)
    mesh = axes.pcolormesh(
        np.append(edges[starts], edges[-1]), np.arange(len(found.scopes) + 1), np.ma.masked_invalid(means.T),
        cmap="viridis", vmin=0, vmax=1, **cell_style(len(means), len(found.scopes)),
    )  # fmt: skip
    axes.set_ylim(len(found.scopes), 0)
    finish(axes, x="step", y=curves.word)
    unnamed = name_rows(axes, found.scopes, body)
    tick_steps(axes, found.steps)
    axes.set_xlim(edges[0], edges[-1])
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    colour_bar(figure, mesh, beside, "accuracy", ticks, names=[percent(tick) for tick in ticks])
    return unnamed + (f"; a column is the mean of {size}" if size > 1 else "")


def _facts(curves: GroupCurves, numbers: pd.DataFrame) -> str:
    found = curves.accuracies
    last = {scope: float(value) for scope, value in zip(found.scopes, found.values[-1], strict=True)}
    known = {scope: value for scope, value in last.items() if np.isfinite(value)}
    total = len(found.scopes) + curves.left_out
    largest = f"the largest {len(found.scopes):,} of " if curves.left_out else ""
    parts = [f"{largest}{total:,} {plural(curves.word, total)}, {measured(found.steps)}"]
    if known:
        ordered = sorted(known, key=lambda scope: known[scope])
        both = dict.fromkeys((ordered[0], ordered[-1]))
        ends = [f"{percent(known[scope])} ({curves.word} {shorten(scope, LONGEST)})" for scope in both]
        parts.append(f"{'at the end ' if len(found.steps) > 1 else ''}{' to '.join(ends)}")
    if len(numbers):
        now = {str(name): float(value) for name, value in numbers.iloc[-1].items()}
        gap, low, high = (percent(now[f"bias_gap{end}"]) for end in ("", "_low", "_high"))
        parts.append(
            f"gap by what the group suggests {gap} (95 % interval {low} to {high}; {now['aligned_examples']:,.0f} and "
            f"{now['conflicting_examples']:,.0f} examples)"
        )
        if np.isfinite(now["association"]):
            parts.append(f"in training, Cramér's V of group and class is {num(now['association'])}")
    return "; ".join(parts)
