"""The optimizer's moments, and the sharpness of the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.quantities.landscape import LossLandscape
from learnscope.quantities.updates import Momentum
from learnscope.reading.gather import Series, as_series
from learnscope.reading.words import count, num
from learnscope.report.broken import breaks
from learnscope.report.instances import Part, by_instance, log_axis, log_foot, numbers, without_value
from learnscope.report.layout import QUIET
from learnscope.report.lines import curve
from learnscope.report.style import COLOURS, finish, guides, lined, maybe_log
from learnscope.store.reader import RunReader

Curve = tuple[str, Series, str, str]
"""Label, numbers, colour and dashes."""
RULES = {"adam": ("Adam", "-"), "momentum": ("SGD", "--")}
SHARPNESS = (
    (LossLandscape.sharpness, "sharpness", COLOURS[0], "-"),
    (LossLandscape.sharpness_threshold, "its threshold 2/η", COLOURS[0], "--"),
    (LossLandscape.momentum_threshold, "with momentum", COLOURS[0], ":"),
    (LossLandscape.preconditioned_sharpness, "preconditioned by Adam", COLOURS[1], "-"),
    (LossLandscape.preconditioned_threshold, "its threshold", COLOURS[1], "--"),
)
DIRECTIONS = {"gradient": "−∇L", "eigenvector": "the top eigenvector", "update": "the last update"}


def momentum_figure(reader: RunReader) -> Figure | None:
    return by_instance(reader, Momentum, "Moments of the optimizer", _momentum_parts, height=3.2)


def landscape_figure(reader: RunReader) -> Figure | None:
    return by_instance(reader, LossLandscape, "Sharpness of the loss", _landscape_parts)


def _momentum_parts(reader: RunReader, label: str) -> list[Part]:
    parts: list[Part] = []
    for quantity, title, summaries in (
        (Momentum.staleness, "cosine of moment and gradient", {"": COLOURS[0]}),
        (Momentum.snr, "signal to noise", {"median": COLOURS[0], "norm_ratio": COLOURS[2]}),
        (Momentum.step_to_weight, "‖step‖/‖W‖", {"": COLOURS[0]}),
    ):
        by = ("rule", "summary") if "" not in summaries else ("rule",)
        frame = numbers(reader, label, quantity, *by)
        rules = [rule for rule in RULES if (frame["rule"] == rule).any()]
        curves: list[Curve] = []
        for rule, (summary, colour) in product(rules, summaries.items()):
            values = as_series(frame[(frame["rule"] == rule) & ((frame["summary"] == summary) if summary else True)])
            words = " ".join(filter(None, [summary.replace("_", " "), RULES[rule][0] if len(rules) > 1 else ""]))
            curves += [(words, values, colour, RULES[rule][1])] if len(values.finite) else []
        if curves:
            facts = () if parts else (count(frame["step"].nunique(), "measurement"),)
            parts.append(Part(title, _over_steps(reader, curves, log=quantity.scale == "log"), facts))
    return parts


def _over_steps(reader: RunReader, curves: Sequence[Curve], *, log: bool) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for label, series, colour, dash in curves:
            curve(axes, series, colour, label, dash=dash, markers=True)
        lined(axes, ticks=5)
        values = [series.finite.values for _, series, _, _ in curves]
        if log:
            maybe_log(axes, values, factor=20, most=6)
        else:  # a cosine: at 1 the moment points along the gradient, at 0 it is unrelated to it
            low = min(float(v.min()) for v in values)
            axes.set_yticks([-1, -0.5, 0, 0.5, 1] if low < 0 else [0, 0.25, 0.5, 0.75, 1])
            axes.set_ylim(min(0.0, low) - 0.05, 1.05)
        if axes.get_yscale() == "linear":
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        finish(axes, x="step")
        breaks(reader).shade(axes)

    return draw


def _landscape_parts(reader: RunReader, label: str) -> list[Part]:
    parts = []
    curves: list[Curve] = []
    facts = []
    for quantity, words, colour, dash in SHARPNESS:
        frame = numbers(reader, label, quantity)
        if np.isfinite(frame["value"].to_numpy(np.float64)).any():
            curves.append((words, as_series(frame), colour, dash))
            if dash == "-":
                below = int((frame["value"] <= 0).sum())
                hidden = f"{count(below, 'value')} of 0 or below, not shown" if below else ""
                facts += [f"{words}: {fact}" for fact in (without_value(frame["value"], "measurement"), hidden) if fact]
    if any((series.values > 0).any() for _, series, _, _ in curves):
        n = max(len(series) for _, series, _, _ in curves)
        title = "sharpness, and what the optimizer bears"
        parts.append(Part(title, lambda axes: _sharpness(axes, curves, reader), [count(n, "measurement"), *facts]))
    along = numbers(reader, label, LossLandscape.loss, "direction", "at")
    finite = along[along["value"].notna()]
    if len(finite):
        last = int(finite["step"].iloc[-1])
        frame = along[along["step"] == last]
        direction = str(frame["direction"].iloc[0])
        title = f"loss along {DIRECTIONS.get(direction, direction)} at step {last:,}"
        missing = without_value(frame["value"], "point")
        facts = [f"of the loss {missing}"] if missing else []
        options = (reader.manifest.get("probes") or {}).get(label) or {}
        parts.append(Part(title, lambda axes: _along(axes, frame, options.get("radius")), facts))
    return parts


def _sharpness(axes: Axes, curves: Sequence[Curve], reader: RunReader) -> None:
    shown = []
    for label, series, colour, dash in curves:
        above = replace(series, values=np.where(series.values > 0, series.values, np.nan))
        shown.append(above.values)
        finite = above.finite.values
        if dash != "-" and len(finite) == 1:  # a single threshold is a line: a dot would look like a sharpness
            axes.axhline(float(finite[0]), color=colour, linestyle=dash, linewidth=1.8, label=label)
        else:
            curve(axes, above, colour, label, dash=dash, markers=dash == "-")
    lined(axes, ticks=5)
    log_axis(axes, "y", shown, log_foot(shown))
    finish(axes, x="step", y="curvature")
    breaks(reader).shade(axes)


def _along(axes: Axes, frame: pd.DataFrame, radius: float | None) -> None:
    axes.plot(frame["at"], frame["value"], color=COLOURS[0], linewidth=1.8, marker="o", markersize=5)
    axes.axvline(0, color=QUIET, linestyle=":", linewidth=1.2, label="the weights")
    guides(axes)
    marks = sorted(frame["at"])
    if len(marks) <= 7:
        axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    x = f"in shares of {num(radius)}·‖W‖" if radius else "in shares of the radius"
    if frame["direction"].iloc[0] == "update":
        x = "−1: the last measurement, 1: as far again"
    finish(axes, x=x, y="loss")
