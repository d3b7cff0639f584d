"""Accuracy by group of examples; where groups suggest a class, those in line with it and those in conflict."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.quantities.examples import GroupAccuracy as Q
from learnscope.reading.gather import Grid
from learnscope.reading.group_curves import GroupCurves, attribute_numbers, group_curves
from learnscope.reading.ordering import plural
from learnscope.reading.words import num, percent
from learnscope.report.broken import breaks, patch
from learnscope.report.heatmap import body_height, measured, shorten
from learnscope.report.layout import QUIET, head, margins, new_figure
from learnscope.report.lines import curve
from learnscope.report.shares import painted_rows
from learnscope.report.style import COLOURS, finish, legend, lined
from learnscope.store.reader import RunReader

LINES = len(COLOURS)
"""Groups up to which each has a line; more become rows of a heatmap."""
LONGEST = 50
"""Most letters of a group's name in a legend."""
ABOVE = 3.0
"""Inches for the axes of aligned and conflicting examples."""


def group_figure(reader: RunReader) -> Figure | None:
    candidates = group_curves(reader)
    if not candidates or not np.isfinite(candidates[0].accuracies.values).any():
        return None
    curves = candidates[0]
    numbers = attribute_numbers(reader, curves.probe)
    above = len(numbers) > 1  # the heading has the numbers of a single measurement
    few = len(curves.accuracies.scopes) <= LINES
    body = 2.6 if few else body_height(len(curves.accuracies.scopes), row=0.22, most=5.0)
    figure = new_figure(body + 1.7 + (ABOVE if above else 0.0))
    spec = figure.add_gridspec(
        2 if above else 1, 1 if few else 2, height_ratios=[ABOVE - 0.6, body] if above else [body]
    )
    margins(figure).bar = not few
    top = figure.add_subplot(spec[0, 0]) if above else None
    axes = figure.add_subplot(spec[-1, 0], sharex=top)
    broken = breaks(reader)
    notes = ""
    if few:
        _lines(axes, curves)
        broken.shade(axes, label=False)
    else:
        grid, bar = curves.accuracies, figure.add_subplot(spec[-1, 1])
        notes = painted_rows(axes, bar, grid.steps, grid.values, grid.scopes, body, row=curves.word, what="accuracy")
        broken.edge(axes)
    if top is not None:
        _sides(top, numbers)
        broken.shade(top, label=False)
    if broken.spans:
        figure.legend(handles=[patch(broken, 0.25 if few else 1.0)], loc="lower center", fontsize=10, frameon=False)
    head(figure, f"Accuracy by {curves.word}", _facts(curves, numbers) + notes)
    return figure


def _sides(axes: Axes, numbers: pd.DataFrame) -> None:
    """Accuracy on aligned and conflicting examples with confidence intervals, and how often the group is predicted."""
    names = [str(name) for name in numbers.columns]
    steps, values = numbers.index.to_numpy(np.int64), numbers.to_numpy(np.float64)
    curves = Grid(steps, names, values, np.zeros(values.shape, bool))
    for quantity, low, high, colour, label in (
        (Q.aligned_accuracy, Q.aligned_accuracy_low, Q.aligned_accuracy_high, COLOURS[0], "group suggests the class"),
        (
            Q.conflicting_accuracy, Q.conflicting_accuracy_low, Q.conflicting_accuracy_high, COLOURS[1],
            "group suggests another",
        ),
    ):  # fmt: skip
        axes.fill_between(steps, numbers[low.name], numbers[high.name], color=colour, alpha=0.18, linewidth=0)
        curve(axes, curves.of(quantity.name), colour, label, smooth=False, markers=True, width=2.4)
    if numbers[Q.classes.name].iloc[-1] > 2:  # with two classes, every wrong prediction is what the group suggests
        following, chance = (curves.of(quantity.name) for quantity in (Q.attribute_following, Q.chance_following))
        curve(axes, following, COLOURS[3], "… and it is predicted", smooth=False, dash="--")
        curve(axes, chance, QUIET, "the same by chance", smooth=False, dash=":")
    lined(axes)
    finish(axes, y="accuracy, share")
    axes.tick_params(labelbottom=False)
    axes.set_ylim(-0.02, 1.03)
    axes.set_title(" ", loc="left", fontsize=10)  # room for the legend, which would hide a curve inside the axes
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=10, frameon=False, borderaxespad=0.1)


def _lines(axes: Axes, curves: GroupCurves) -> None:
    grid = curves.accuracies
    for number, scope in enumerate(grid.scopes):
        n = curves.examples.get(scope)
        label = f"{curves.word} {shorten(scope, LONGEST)}" + (f" (n = {n:,})" if n is not None else "")
        colour = COLOURS[(number + 2) % LINES]  # the first two are used in the axes above
        curve(axes, grid.of(scope), colour, label, smooth=False, markers=True)
    lined(axes)
    finish(axes, x="step", y="accuracy")
    axes.set_ylim(-0.02, 1.03)
    legend(axes)


def _facts(curves: GroupCurves, numbers: pd.DataFrame) -> str:
    grid = curves.accuracies
    last = {scope: float(value) for scope, value in zip(grid.scopes, grid.values[-1], strict=True)}
    finite = {scope: value for scope, value in last.items() if np.isfinite(value)}
    total = len(grid.scopes) + curves.left_out
    largest = f"the largest {len(grid.scopes):,} of " if curves.left_out else ""
    parts = [f"{largest}{total:,} {plural(curves.word, total)}, {measured(grid.steps)}"]
    if finite:
        ordered = sorted(finite, key=lambda scope: finite[scope])
        extremes = dict.fromkeys((ordered[0], ordered[-1]))
        ends = [f"{percent(finite[scope])} ({curves.word} {shorten(scope, LONGEST)})" for scope in extremes]
        parts.append(f"{'at the end ' if len(grid.steps) > 1 else ''}{' to '.join(ends)}")
    if len(numbers):
        final = {str(name): float(value) for name, value in numbers.iloc[-1].items()}
        gap, low, high = (percent(final[end.name]) for end in (Q.bias_gap, Q.bias_gap_low, Q.bias_gap_high))
        parts.append(
            f"gap by what the group suggests {gap} (95 % interval {low} to {high}; "
            f"{final[Q.aligned_examples.name]:,.0f} and {final[Q.conflicting_examples.name]:,.0f} examples)"
        )
        if np.isfinite(final[Q.association.name]):
            parts.append(f"in training, Cramér's V of group and class is {num(final[Q.association.name])}")
    return "; ".join(parts)
