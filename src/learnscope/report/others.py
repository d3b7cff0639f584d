"""Numbers that no other figure knows: those of the user's own probes, and what else the loop logged."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from learnscope.reading.audit_tables import PROBES
from learnscope.reading.gather import Series, as_series, class_of, label_columns, labels
from learnscope.reading.words import count, num
from learnscope.report.broken import breaks, patch
from learnscope.report.layout import INK, head, new_figure
from learnscope.report.lines import curve, is_accuracy
from learnscope.report.style import COLOURS, finish, lined, maybe_log
from learnscope.store.reader import RunReader

KNOWN = frozenset({
    "Activations", "AdapterGradients", "AdapterSpectrum", "AdapterTruncation", "BatchStats", "ExampleLedger",
    "GradientFlow", "GroupAccuracy", "Holdout", "LearningRate", "Loss", "LossLandscape", "LowRankQuality",
    "Memorization", "Momentum", "ParameterChange", "SparseQuality", *PROBES.values(),
})  # fmt: skip
"""Probes that have figures of their own."""
MOST, ACROSS = 12, 3


def other_numbers(reader: RunReader) -> dict[str, Series]:
    """Model-wide numbers without a figure of their own, by what to call them."""
    found = {}
    for label in labels(reader):
        logged = class_of(label) == "Loss"
        if class_of(label) in KNOWN and not logged:
            continue
        frame = reader.frame(label, kind="model")
        names = [str(name) for name in frame["name"].unique()]
        for name in names:
            if logged and (name == "loss" or is_accuracy(name) or name.removesuffix("_std") in set(names) - {name}):
                continue
            for said, part in _by_labels(frame[frame["name"] == name]):
                one = as_series(part.drop_duplicates("step", keep="last").sort_values("step", kind="stable"))
                found[f"{name}{said}" if logged else f"{label}: {name}{said}"] = one
    return found


def _by_labels(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """One table for every combination of labels, and how to say it."""
    used = [column for column in label_columns(frame) if frame[column].notna().any()]
    if not used:
        return [("", frame)]
    out = []
    for _, part in frame.groupby(used, dropna=False, sort=False):
        known = part[used].iloc[0].dropna()
        said = ", ".join(f"{key} {value}" for key, value in known.items())
        out.append((f" ({said})" if said else "", part))
    return out


def measured_once(reader: RunReader) -> list[str]:
    """Numbers that would be a dot on a figure, in words."""
    return [
        f"{name} {_exact(float(one.finite.values[0]))}"
        for name, one in other_numbers(reader).items()
        if len(one) == 1 and len(one.finite)
    ]


def _exact(value: float) -> str:
    """
    >>> _exact(1437.0), _exact(0.12345)
    ('1,437', '0.123')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else num(value)


def other_figure(reader: RunReader) -> Figure | None:
    """Small multiples over the same steps."""
    every = {name: one for name, one in other_numbers(reader).items() if len(one) > 1 and len(one.finite)}
    if not every:
        return None
    shown = dict(list(every.items())[:MOST])
    columns = min(ACROSS, len(shown))
    down = math.ceil(len(shown) / columns)
    figure = new_figure(1.2 + 2.0 * down)
    grid = figure.subplots(down, columns, sharex=True, squeeze=False)
    broken = breaks(reader)
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.set_visible(False)
            continue
        name, one = list(shown.items())[place]
        curve(axes, one, COLOURS[0], "", width=1.5)
        lined(axes, ticks=4)
        maybe_log(axes, [one.finite.values], factor=1000, most=4)
        if axes.get_yscale() == "linear":
            axes.locator_params(axis="y", nbins=4)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        # the lowest of each column has the steps below it
        below = place + columns >= len(shown)
        finish(axes, x="step" if below else "", size=10)
        axes.tick_params(labelbottom=below)
        axes.set_title(name if len(name) <= 40 else f"{name[:39]}…", loc="left", fontsize=10, color=INK)
        broken.shade(axes)
    if broken.spans:
        figure.legend(handles=[patch(broken, 0.25)], loc="lower center", fontsize=10, frameon=False)
    left = len(every) - len(shown)
    head(figure, "Other numbers", count(len(shown), "number") + (f"; {left:,} more left out" if left else ""))
    return figure
