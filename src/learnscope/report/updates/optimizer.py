"""What the optimizer remembers, and the shape of the loss that it steps on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.reading.gather import Series, as_series
from learnscope.reading.words import count, num
from learnscope.report.broken import breaks
from learnscope.report.instances import Part, by_instance, log_axis, log_foot, numbers, without_value
from learnscope.report.layout import QUIET
from learnscope.report.lines import curve
from learnscope.report.style import COLOURS, finish, lined, maybe_log
from learnscope.store.reader import RunReader

Curve = tuple[str, Series, str, str]
"""What it is called, its numbers, its colour and its dashes."""
RULES = {"adam": ("Adam", "-"), "momentum": ("SGD", "--")}
SHARPNESS = (
    ("sharpness", "sharpness", COLOURS[0], "-"),
    ("sharpness_threshold", "its threshold 2/η", COLOURS[0], "--"),
    ("momentum_threshold", "with momentum", COLOURS[0], ":"),
    ("preconditioned_sharpness", "preconditioned by Adam", COLOURS[1], "-"),
    ("preconditioned_threshold", "its threshold", COLOURS[1], "--"),
)
DIRECTIONS = {"gradient": "−∇L", "eigenvector": "the top eigenvector", "update": "the last update"}


def momentum_figure(reader: RunReader) -> Figure | None:
    return by_instance(reader, "Momentum", "Moments of the optimizer", _momentum_parts, height=3.2)


def landscape_figure(reader: RunReader) -> Figure | None:
    return by_instance(reader, "LossLandscape", "Sharpness of the loss", _landscape_parts)


def _momentum_parts(reader: RunReader, label: str) -> list[Part]:
    parts: list[Part] = []
    for name, title, summaries in (
        ("staleness", "cosine of moment and gradient", {"": COLOURS[0]}),
        ("snr", "signal to noise", {"median": COLOURS[0], "norm_ratio": COLOURS[2]}),
        ("step_to_weight", "‖step‖/‖W‖", {"": COLOURS[0]}),
    ):
        by = ("rule", "summary") if "" not in summaries else ("rule",)
        frame = numbers(reader, label, name, *by)
        rules = [rule for rule in RULES if (frame["rule"] == rule).any()]
        curves: list[Curve] = []
        for rule in rules:
            for summary, colour in summaries.items():
                one = frame[(frame["rule"] == rule) & ((frame["summary"] == summary) if summary else True)]
                said = " ".join(filter(None, [summary.replace("_", " "), RULES[rule][0] if len(rules) > 1 else ""]))
                curves.append((said, as_series(one), colour, RULES[rule][1]))
        curves = [one for one in curves if len(one[1].finite)]
        if curves:
            facts = () if parts else (count(frame["step"].nunique(), "measurement"),)
            parts.append(Part(title, _over_steps(reader, curves, log=name != "staleness"), facts))
    return parts


def _over_steps(reader: RunReader, curves: Sequence[Curve], *, log: bool) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for called, one, colour, dash in curves:
            curve(axes, one, colour, called, dash=dash, markers=True)
        lined(axes, ticks=5)
        values = [one.finite.values for _, one, _, _ in curves]
        if log:
            maybe_log(axes, values, factor=20, most=6)
        else:  # a cosine: 1 is fresh, 0 has nothing to do with the gradient
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
    for name, called, colour, dash in SHARPNESS:
        frame = numbers(reader, label, name)
        if np.isfinite(frame["value"].to_numpy(np.float64)).any():
            curves.append((called, as_series(frame), colour, dash))
            if dash == "-":
                below = int((frame["value"] <= 0).sum())
                facts += [f"{called}: {said}" for said in (
                    without_value(frame, "measurement"),
                    f"{count(below, 'value')} of 0 or below, not shown" if below else "",
                ) if said]  # fmt: skip
    if any((one.values > 0).any() for _, one, _, _ in curves):
        n = max(len(one) for _, one, _, _ in curves)
        title = "sharpness, and what the optimizer bears"
        parts.append(Part(title, lambda axes: _sharpness(axes, curves, reader), [count(n, "measurement"), *facts]))
    along = numbers(reader, label, "loss", "direction", "at")
    known = along[along["value"].notna()]
    if len(known):
        last = int(known["step"].iloc[-1])
        frame = along[along["step"] == last]
        direction = str(frame["direction"].iloc[0])
        title = f"loss along {DIRECTIONS.get(direction, direction)} at step {last:,}"
        missing = without_value(frame, "point")
        facts = [f"of the loss {missing}"] if missing else []
        options = (reader.manifest.get("probes") or {}).get(label) or {}
        parts.append(Part(title, lambda axes: _along(axes, frame, options.get("radius")), facts))
    return parts


def _sharpness(axes: Axes, curves: Sequence[Curve], reader: RunReader) -> None:
    shown = []
    for called, one, colour, dash in curves:
        above = Series(one.steps, np.where(one.values > 0, one.values, np.nan), one.status)
        shown.append(above.values)
        known = above.finite.values
        if dash != "-" and len(known) == 1:  # a dot would pass for a sharpness
            axes.axhline(float(known[0]), color=colour, linestyle=dash, linewidth=1.8, label=called)
        else:
            curve(axes, above, colour, called, dash=dash, markers=dash == "-")
    lined(axes, ticks=5)
    log_axis(axes, "y", shown, log_foot(shown))
    finish(axes, x="step", y="curvature")
    breaks(reader).shade(axes)


def _along(axes: Axes, frame: pd.DataFrame, radius: float | None) -> None:
    axes.plot(frame["at"], frame["value"], color=COLOURS[0], linewidth=1.8, marker="o", markersize=5)
    axes.axvline(0, color=QUIET, linestyle=":", linewidth=1.2, label="the weights")
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    marks = sorted(frame["at"])
    if len(marks) <= 7:
        axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    x = f"in shares of {num(radius)}·‖W‖" if radius else "in shares of the radius"
    if frame["direction"].iloc[0] == "update":
        x = "−1: the last measurement, 1: as far again"
    finish(axes, x=x, y="loss")
