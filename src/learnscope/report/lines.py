"""Numbers over the steps: losses, gradient norms, learning rates, how much of the weights moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.quantities.gradients import GradientFlow
from learnscope.quantities.outputs import Holdout, Loss
from learnscope.quantities.updates import LearningRate, ParameterChange
from learnscope.reading.gather import Floats, Series, as_series, grid, labels_of, rows, series
from learnscope.reading.held_out import HeldOutLoss, held_out_loss
from learnscope.reading.other_numbers import is_accuracy
from learnscope.reading.pyramid import thinned
from learnscope.reading.words import count, num, percent
from learnscope.report.broken import Breaks, breaks, weights
from learnscope.report.layout import QUIET, head, new_figure
from learnscope.report.style import BROKEN, COLOURS, DASHES, finish, legend, lined, maybe_log, plain
from learnscope.store.reader import RunReader

MANY = 300
"""Points beyond which a curve is drawn thin with its running median over it."""


def loss_figure(reader: RunReader) -> Figure | None:
    loss, held_out = series(reader, Loss.loss), held_out_loss(reader)
    holdout, shares = held_out.series, accuracies(reader)
    if not len(loss) and not len(holdout.finite) and not shares:
        return None
    # another loss than the training's has axes of its own: on the same ones the two would be compared
    apart = held_out.stand_in is not None and len(loss) > 0 and len(holdout.finite) > 0
    ratios = [2.0, *([1.4] if apart else []), *([1.1] if shares else [])]
    figure = new_figure(2.2 + 2.4 * len(ratios))
    broken = breaks(reader)
    above, *below = figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios, squeeze=False)[:, 0]
    if len(loss):
        curve(above, loss, COLOURS[0], "training")
    stand_in = held_out.stand_in or "loss"
    if apart:
        _losses(above, [loss], "loss", broken, last=False)
        _holdout(below[0], holdout, held_out.name)
        _losses(below[0], [holdout], stand_in, broken, last=not shares)
    else:
        if len(holdout.finite):
            _holdout(above, holdout, held_out.name)
        _losses(above, [loss, holdout], "loss" if len(loss) else stand_in, broken, last=not shares)
    if shares:
        _accuracies(below[-1], shares, broken)
    title = " and ".join(name for name, have in (("training", len(loss)), ("holdout", len(holdout))) if have)
    head(figure, f"{title.capitalize()} loss" if title else "Accuracy", _ends(loss, held_out))
    return figure


def loss_note(reader: RunReader) -> str:
    """Why the holdout loss has axes of its own, where it has."""
    held_out = held_out_loss(reader)
    return held_out.note if len(series(reader, Loss.loss)) and len(held_out.series.finite) else ""


def _losses(axes: Axes, curves: Sequence[Series], name: str, broken: Breaks, *, last: bool) -> None:
    lined(axes)
    maybe_log(axes, [values.finite.values for values in curves])
    finish(axes, x="step" if last else "", y=name)
    broken.shade(axes)
    legend(axes)


def _holdout(axes: Axes, holdout: Series, name: str) -> None:
    curve(axes, holdout, COLOURS[1], name, markers=True)
    at = int(holdout.finite.values.argmin())
    step, value = int(holdout.finite.steps[at]), float(holdout.finite.values[at])
    axes.plot([step], [value], marker="o", markersize=11, markerfacecolor="none", color=COLOURS[1],
              linestyle="none", markeredgewidth=1.8,
              label=f"best holdout: {num(value)} at step {step:,}")  # fmt: skip


def accuracies(reader: RunReader) -> dict[str, Series]:
    """The accuracies that the loop logged, then the holdout's."""
    names: list[str] = []
    for label in labels_of(reader, Loss):
        names += [name for name in reader.columns().names(label, "model") if is_accuracy(name)]
    shares = {name: series(reader, Loss.named(name)) for name in dict.fromkeys(names)}
    shares["holdout"] = series(reader, Holdout.holdout_accuracy)
    return {name: values for name, values in shares.items() if len(values.finite)}


def _accuracies(axes: Axes, shares: dict[str, Series], broken: Breaks) -> None:
    """The holdout's in the colour of the holdout loss, the first logged one in that of the training loss."""
    others = iter([COLOURS[0], *COLOURS[2:]] * len(shares))
    top = 1.0
    for name, values in shares.items():
        percents = float(values.finite.values.max()) > 1.5
        if percents:
            values = replace(values, values=values.values / 100)
        held_out = name == "holdout"
        label = f"{name} ÷ 100" if percents else name
        curve(axes, values, COLOURS[1] if held_out else next(others), label, markers=held_out)
        top = max(top, float(values.finite.values.max()))
    lined(axes)
    finish(axes, x="step", y="accuracy")
    lowest = min(0.0, *(float(values.finite.values.min()) for values in shares.values()))
    axes.set_ylim(lowest - 0.02 * top, 1.03 * top)
    broken.shade(axes, label=False)  # the axes above say what it is
    legend(axes)


def _ends(loss: Series, held_out: HeldOutLoss) -> str:
    parts = []
    holdout = held_out.name if held_out.stand_in is None else f"{held_out.name}, {held_out.stand_in},"
    for name, values in (("training", loss), (holdout, held_out.series)):
        shown = values.finite
        if len(shown) > 1:
            parts.append(f"{name} {num(float(shown.values[0]))} to {num(float(shown.values[-1]))} (n = {len(shown):,})")
        elif len(shown):
            parts.append(f"{name} {num(float(shown.values[0]))} at step {shown.steps[0]:,}")
        if len(values.broken):
            parts.append(f"{name} not finite at {count(len(values.broken), 'step')}")
    return "; ".join(parts)


def norm_figure(reader: RunReader) -> Figure | None:
    """The overall gradient norm, before and after clipping, with a mark wherever it was clipped."""
    stepped = series(reader, GradientFlow.norm, stage="stepped")
    before = series(reader, GradientFlow.norm, stage="before_clip")
    if not len(stepped):
        return None
    clip = series(reader, GradientFlow.clip_coefficient).finite
    axes = new_figure(4.6).subplots()
    if len(before.finite):
        # broad, so that it still shows where nothing was clipped and the other lies on it
        curve(axes, before, COLOURS[4], "before clipping", width=3.6)
    curve(axes, stepped, COLOURS[0], "given to the optimizer")
    clipped = clip.steps[clip.values < 1]
    if len(clipped):
        # at the foot of the axes, whatever the norms are
        axes.plot(clipped, np.full(len(clipped), 0.02), "|", color=QUIET, markersize=9, label="clipped",
                  transform=axes.get_xaxis_transform())  # fmt: skip
    lined(axes)
    maybe_log(axes, [stepped.finite.values, before.finite.values], factor=20)
    facts = count(len(stepped), "measurement")
    if len(clip):
        smallest = f", smallest factor {num(float(clip.values.min()))}" if len(clipped) else ""
        facts += f"; clipped in {len(clipped):,} of {len(clip):,} ({percent(len(clipped) / len(clip))}){smallest}"
    return finished(reader, axes, "‖g‖", "Gradient norm of the model", facts)


def rate_figure(reader: RunReader) -> Figure | None:
    rates = grid(reader, LearningRate.learning_rate, kind="group")
    if not rates:
        return None
    axes = new_figure(3.8).subplots()
    for number, group in enumerate(rates.scopes):
        style = DASHES[number // len(COLOURS) % len(DASHES)] if number >= len(COLOURS) else DASHES[number % 2]
        colour, label = COLOURS[number % len(COLOURS)], group if number < 12 else ""
        curve(axes, rates.of(group), colour, label, smooth=False, dash=style)
    lined(axes)
    peak = float(np.nanmax(rates.values)) if np.isfinite(rates.values).any() else 0.0
    # one way of writing for all ticks: 0.0001 above 5e-05 reads as the smaller one
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1e}" if value and peak < 0.01 else f"{value:.3g}")
    axes.set_ylim(bottom=0)
    facts = f"{count(len(rates.scopes), 'group')}; highest {num(peak)}"
    return finished(reader, axes, "learning rate", "Learning rate", facts)


def change_figure(reader: RunReader) -> Figure | None:
    """How much of the weights moves between two measurements: visible share, and sparsity by threshold."""
    visible = series(reader, ParameterChange.visible_share)
    frame = rows(reader, ParameterChange.sparsity, kind="model")
    if not len(visible.finite) and not len(frame):
        return None
    axes = new_figure(4.4).subplots()
    if len(visible.finite):
        curve(axes, visible, COLOURS[0], "stored bits changed (visible share)", smooth=False, markers=True)
    thresholds = sorted(frame["threshold"].dropna().unique()) if "threshold" in frame else []
    for number, threshold in enumerate(thresholds):
        sparsity = as_series(frame[frame["threshold"] == threshold])
        label = f"|Δ| ≤ {plain(float(threshold)) if threshold > 0 else '0'} (sparsity)"
        curve(axes, sparsity, COLOURS[1 + number % 4], label, smooth=False, markers=True, dash="--")
    for quantity, dash, what in (
        (ParameterChange.absorbed_share, "-.", "update"), (ParameterChange.decay_absorbed_share, ":", "weight decay"),
    ):  # fmt: skip
        lost = series(reader, quantity, rounding="apart")
        if len(lost.finite):
            curve(axes, lost, COLOURS[5], f"{what} lost to rounding", smooth=False, markers=True, dash=dash)
    lined(axes)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    dtypes = sorted({str(d).removeprefix("torch.") for d in frame["dtype"].dropna()}) if "dtype" in frame else []
    n = max(len(visible), frame["step"].nunique())
    facts = "; weights in ".join([count(n, "measurement"), *([", ".join(dtypes)] if dtypes else [])])
    _say_broken(axes, reader)
    return finished(reader, axes, "share of entries", "Share of the weights that moved", facts)


def finished(reader: RunReader, axes: Axes, y: str, title: str, facts: str) -> Figure:
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    finish(axes, x="step", y=y)
    breaks(reader).shade(axes)
    legend(axes)
    head(figure, title, facts)
    return figure


def _say_broken(axes: Axes, reader: RunReader) -> None:
    """Written into the shaded steps: weights that are NaN look as if they did not move."""
    bad = weights(reader)
    if not len(bad.bad):
        return
    left, right = axes.get_xlim()
    when = f"from step {bad.first:,} on" if bad.lasting else f"at step {bad.first:,}"
    room = bad.lasting and right - bad.first > 0.3 * (right - left)
    near = 0.01 * (right - left) * (-1 if bad.first > (left + right) / 2 else 1)
    axes.text(
        (bad.first + right) / 2 if room else bad.first + near, 0.4, f"weights not finite\n{when}", color=BROKEN,
        fontsize=11, fontweight="bold", va="center", ha="center" if room else "right" if near < 0 else "left",
    )  # fmt: skip


def change_note(reader: RunReader) -> str:
    """What the figure of moved weights does not mean where the weights are not finite."""
    bad = weights(reader)
    if not len(bad.bad):
        return ""
    if bad.lasting:
        return (
            f"The weights hold NaN or infinite entries from step {bad.first:,} on: an entry that stays NaN counts as "
            "not moved, and the model is broken rather than frozen."
        )
    return f"The weights held NaN or infinite entries at {count(len(bad.bad), 'measurement')}, from step {bad.first:,}."


def curve(
    axes: Axes, values: Series, colour: str, label: str, *, smooth: bool = True, markers: bool = False,
    dash: str = "-", width: float = 1.8,
) -> None:  # fmt: skip
    """A line; a long one is thin with its running median over it, a single point is a dot. Gaps stay gaps."""
    n = len(values.finite)
    dot = "o" if n == 1 or (markers and n <= 60) else ""
    heavy = smooth and n > MANY and not markers
    axes.plot(
        *thinned(values.steps, values.values), color=colour, linestyle=dash, marker=dot, markersize=5,
        linewidth=width / 2 if heavy else width, alpha=0.4 if heavy else 1.0, label="" if heavy else label,
    )  # fmt: skip
    if heavy:
        shown = values.finite
        window = max(5, n // 60) | 1  # odd, so that it has a middle
        axes.plot(
            *thinned(shown.steps, running_median(shown.values, window)), color=colour, linewidth=1.2 * width,
            label=f"{label}, running median of {window}",
        )  # fmt: skip


def running_median(values: Floats, width: int) -> Floats:
    """The median of the `width` values around each, an odd number; fewer at both ends."""
    return pd.Series(values).rolling(width, center=True, min_periods=1).median().to_numpy()
