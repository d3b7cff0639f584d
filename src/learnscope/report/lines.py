"""Numbers over the steps: losses, gradient norms, learning rates, how much of the weights moves."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.findings.gather import Floats, Series, as_series, grid, rows, series
from learnscope.findings.words import count, num, percent
from learnscope.report.style import (
    COLOURS,
    DASHES,
    QUIET,
    finish,
    legend,
    lined,
    maybe_log,
    new_figure,
    plain,
    shade_broken,
)
from learnscope.store.reader import RunReader

MANY = 300
"""Points beyond which a curve is drawn thin with its running median over it."""


def loss_figure(reader: RunReader) -> Figure | None:
    """Training loss with holdout loss, and holdout accuracy below on its own axes."""
    loss, holdout = series(reader, "Loss", "loss"), series(reader, "Holdout", "holdout_loss")
    accuracy = series(reader, "Holdout", "holdout_accuracy").finite
    if not len(loss) and not len(holdout.finite) and not len(accuracy):
        return None
    figure = new_figure(6.6 if len(accuracy) else 4.6)
    if len(accuracy):
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
        _curve(below, accuracy, COLOURS[2], "holdout accuracy", markers=True)
        lined(below)
        finish(below, x="step", y="holdout accuracy")
        below.set_ylim(min(0.0, float(accuracy.values.min())), max(1.0, float(accuracy.values.max())) * 1.02)
    else:
        axes = figure.subplots()
    if len(loss):
        _curve(axes, loss, COLOURS[0], "training")
    if len(holdout.finite):
        _curve(axes, holdout, COLOURS[1], "holdout", markers=True)
        _mark_best(axes, holdout.finite)
    shade_broken(axes, loss if len(loss) else holdout)
    lined(axes)
    maybe_log(axes, [loss.finite.values, holdout.finite.values])
    title = " and ".join(name for name, have in (("Training", len(loss)), ("holdout", len(holdout))) if have)
    finish(
        axes, f"{title[:1].upper()}{title[1:]} loss", _ends(loss, holdout), x="" if len(accuracy) else "step", y="loss"
    )
    legend(axes)
    return figure


def _ends(loss: Series, holdout: Series) -> str:
    parts = []
    for name, values in (("training", loss), ("holdout", holdout)):
        shown = values.finite
        if len(shown) > 1:
            parts.append(f"{name} {num(float(shown.values[0]))} to {num(float(shown.values[-1]))} (n = {len(shown):,})")
        elif len(shown):
            parts.append(f"{name} {num(float(shown.values[0]))} at step {shown.steps[0]:,}")
        if len(values.broken):
            parts.append(f"{name} not finite at {len(values.broken):,} steps")
    return "; ".join(parts)


def _mark_best(axes: Axes, holdout: Series) -> None:
    at = int(holdout.values.argmin())
    step, value = int(holdout.steps[at]), float(holdout.values[at])
    axes.plot([step], [value], marker="o", markersize=11, markerfacecolor="none", color=COLOURS[1], linestyle="none",
              markeredgewidth=1.8, label=f"best holdout: {num(value)} at step {step:,}")  # fmt: skip


def norm_figure(reader: RunReader) -> Figure | None:
    """The overall gradient norm, before and after clipping, with a mark wherever it was clipped."""
    stepped = series(reader, "GradientFlow", "norm", stage="stepped")
    before = series(reader, "GradientFlow", "norm", stage="before_clip")
    if not len(stepped):
        return None
    clip = series(reader, "GradientFlow", "clip_coefficient").finite
    figure = new_figure(4.6)
    axes = figure.subplots()
    if len(before.finite):
        # broad, so that it still shows where nothing was clipped and the other lies on it
        _curve(axes, before, COLOURS[4], "before clipping", width=3.6)
    _curve(axes, stepped, COLOURS[0], "given to the optimizer")
    clipped = clip.steps[clip.values < 1]
    if len(clipped):
        # at the foot of the axes, whatever the norms are
        axes.plot(clipped, np.full(len(clipped), 0.02), "|", color=QUIET, markersize=9, label="clipped",
                  transform=axes.get_xaxis_transform())  # fmt: skip
    shade_broken(axes, stepped)
    lined(axes)
    maybe_log(axes, [stepped.finite.values, before.finite.values], factor=20)
    facts = count(len(stepped), "measurement")
    if len(clip):
        smallest = f", smallest factor {num(float(clip.values.min()))}" if len(clipped) else ""
        facts += f"; clipped in {len(clipped):,} of {len(clip):,} ({percent(len(clipped) / len(clip))}){smallest}"
    finish(axes, "Gradient norm of the model", facts, x="step", y="‖g‖")
    legend(axes)
    return figure


def rate_figure(reader: RunReader) -> Figure | None:
    """The learning rate of every optimizer group."""
    rates = grid(reader, "LearningRate", "learning_rate", "group")
    if not rates:
        return None
    figure = new_figure(3.8)
    axes = figure.subplots()
    for number, group in enumerate(rates.scopes):
        style = DASHES[number // len(COLOURS) % len(DASHES)] if number >= len(COLOURS) else DASHES[number % 2]
        one = Series(rates.steps, rates.values[:, number], [None] * len(rates.steps))
        _curve(axes, one, COLOURS[number % len(COLOURS)], group if number < 12 else "", smooth=False, dash=style)
    lined(axes)
    peak = float(np.nanmax(rates.values)) if np.isfinite(rates.values).any() else 0.0
    # one way of writing for all ticks: 0.0001 above 5e-05 reads as the smaller one
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1e}" if value and peak < 0.01 else f"{value:.3g}")
    groups = "1 group" if len(rates.scopes) == 1 else f"{len(rates.scopes)} groups"
    finish(axes, "Learning rate", f"{groups}; highest {num(peak)}", x="step", y="learning rate")
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


def change_figure(reader: RunReader) -> Figure | None:
    """How much of the weights moves between two measurements: visible share, and sparsity by threshold."""
    visible = series(reader, "ParameterChange", "visible_share")
    frame = rows(reader, "ParameterChange", "sparsity", "model")
    if not len(visible.finite) and not len(frame):
        return None
    figure = new_figure(4.4)
    axes = figure.subplots()
    if len(visible.finite):
        _curve(axes, visible, COLOURS[0], "stored bits changed (visible share)", smooth=False, markers=True)
    thresholds = sorted(frame["threshold"].dropna().unique()) if "threshold" in frame else []
    for number, threshold in enumerate(thresholds):
        one = as_series(frame[frame["threshold"] == threshold])
        label = f"|Δ| ≤ {plain(float(threshold)) if threshold > 0 else '0'} (sparsity)"
        _curve(axes, one, COLOURS[1 + number % 4], label, smooth=False, markers=True, dash="--")
    lined(axes)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    dtypes = sorted({str(d).removeprefix("torch.") for d in frame["dtype"].dropna()}) if "dtype" in frame else []
    n = max(len(visible), frame["step"].nunique())
    facts = "; weights in ".join([count(n, "measurement"), *([", ".join(dtypes)] if dtypes else [])])
    finish(axes, "Share of the weights that moved", facts, x="step", y="share of entries")
    legend(axes)
    return figure


def _curve(
    axes: Axes, values: Series, colour: str, label: str, *, smooth: bool = True, markers: bool = False,
    dash: str = "-", width: float = 1.8,
) -> None:  # fmt: skip
    """A line; long ones thin with a running median over them; one lonely point as a dot. Gaps stay gaps."""
    n = len(values.finite)
    dot = "o" if n == 1 or (markers and n <= 60) else ""
    heavy = smooth and n > MANY and not markers
    axes.plot(
        values.steps, values.values, color=colour, linestyle=dash, marker=dot, markersize=5,
        linewidth=width / 2 if heavy else width, alpha=0.4 if heavy else 1.0, label="" if heavy else label,
    )  # fmt: skip
    if heavy:
        shown = values.finite
        window = max(5, n // 60) | 1  # odd, so that it has a middle
        axes.plot(
            shown.steps, running_median(shown.values, window), color=colour, linewidth=1.2 * width,
            label=f"{label}, running median of {window}",
        )  # fmt: skip


def running_median(values: Floats, width: int) -> Floats:
    """The median of the `width` values around each, an odd number; fewer at both ends."""
    half = width // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])
