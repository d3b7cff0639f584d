"""Examples of a transition: their attribution scores, losses and labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from learnscope.findings.examples.critical import Attributions, CriticalExamples, critical_examples, enrichment
from learnscope.reading.gather import Floats
from learnscope.reading.words import count, num, percent
from learnscope.report.heatmap import colour_bar
from learnscope.report.layout import INK, QUIET, figure_with_bar, head, new_figure, save_all
from learnscope.report.style import BROKEN, COLOURS, finish, guides, legend, log_scale

MOST_LABELS = 24
MARKED = 0.05
"""A label with at most this adjusted p-value is marked."""
DRAWN = 20_000


def plot_attributions(transition: Attributions, folder: Path, top_k: int) -> list[Path]:
    """Write `attribution_scores.png`, and with that data `attribution_losses.png`, `…_labels.png`, `…_groups.png`."""
    critical = critical_examples(transition, top_k)
    figures = {"attribution_scores": draw_scores(transition, critical)}
    if transition.loss_before is not None and transition.loss_after is not None:
        figures["attribution_losses"] = draw_losses(transition, transition.loss_before, transition.loss_after)
    for what, names in (("label", transition.classes), ("group", transition.groups)):
        if names is not None and len(critical):
            figures[f"attribution_{what}s"] = draw_shares(transition, critical, enrichment(critical, names), what)
    return save_all(figures, folder)


def _titled(figure: Figure, title: str, transition: Attributions, *facts: str) -> None:
    scored = int(np.isfinite(transition.scores).sum())
    lost = f", {count(len(transition) - scored, 'example')} without a score" if scored < len(transition) else ""
    base = f"{transition.method}, epochs {transition.before} to {transition.after}; {count(scored, 'example')}{lost}"
    head(figure, title, "; ".join([base, *(fact for fact in facts if fact)]))


def draw_scores(transition: Attributions, critical: CriticalExamples) -> Figure:
    """A histogram of the scores, with logarithmic counts, so that the few high scores can be seen."""
    figure = new_figure(4.6)
    axes = figure.subplots()
    finish(axes, "score", "examples")
    scored = transition.scores[np.isfinite(transition.scores)]
    if not len(scored):
        axes.text(0.5, 0.5, "no example has a score", ha="center", transform=axes.transAxes, color=QUIET)
        _titled(figure, "Scores of examples", transition)
        return figure
    axes.hist(scored, bins=60, color=COLOURS[0], alpha=0.85)
    axes.set_yscale("log")
    top = float(axes.get_ylim()[1])
    ticks = [tick for tick in (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000) if tick < top]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.7, top)
    if len(critical):
        axes.axvspan(critical.scores[-1], float(scored.max()), color=COLOURS[1], alpha=0.25, linewidth=0,
                     label=f"the {len(critical)} highest")  # fmt: skip
    middle = float(np.median(scored))
    axes.axvline(middle, color=INK, linestyle="--", linewidth=1, label=f"median, {num(middle)}")
    legend(axes)
    guides(axes)
    meaning = "cosine of its gradients before and after × the loss it lost" if transition.method == "transition" else ""
    _titled(figure, "Scores of examples", transition, meaning)
    return figure


def draw_losses(transition: Attributions, before: Floats, after: Floats) -> Figure:
    """Loss after against loss before, coloured by score; examples below the line were learned."""
    figure, axes, bar = figure_with_bar(6.4)
    scored = np.flatnonzero(np.isfinite(before) & np.isfinite(after) & np.isfinite(transition.scores))
    many = len(scored) > DRAWN
    shown = np.sort(np.random.default_rng(0).choice(scored, DRAWN, replace=False)) if many else scored
    shown = shown[np.argsort(np.abs(transition.scores[shown]), kind="stable")]  # large scores on top
    sides = before[shown], after[shown]
    losses = np.concatenate(sides)
    positive = losses[losses > 0]
    logarithmic = bool(len(positive) and losses.min() >= 0 and losses.max() > 50 * np.quantile(positive, 0.05))
    (x, x_limits), (y, y_limits) = (_placed(side, logarithmic) for side in sides)
    reach = (float(np.quantile(np.abs(transition.scores[shown]), 0.99)) if len(shown) else 0.0) or 1.0
    mesh = axes.scatter(x, y, c=transition.scores[shown], cmap="RdBu", s=14, linewidths=0.2, edgecolors="#888888",
                        vmin=-reach, vmax=reach)  # fmt: skip
    ends = max(x_limits[0], y_limits[0]), min(x_limits[1], y_limits[1])
    if ends[0] < ends[1]:
        axes.plot(ends, ends, color=INK, linewidth=1, linestyle="--", label="no change", zorder=0)
    if logarithmic:
        log_scale(axes, *x_limits, x=True, most=7)
        log_scale(axes, *y_limits, most=7)
    axes.set(xlim=x_limits, ylim=y_limits)
    legend(axes)
    ticks = [float(tick) for tick in np.linspace(-reach, reach, 5)]
    colour_bar(figure, mesh, bar, "score", ticks, "both", [num(tick) for tick in ticks])
    finish(axes, f"loss at epoch {transition.before}", f"loss at epoch {transition.after}")
    lower = int((after[scored] < before[scored]).sum())
    zeros = int(sum((side <= 0).sum() for side in sides)) if logarithmic else 0
    _titled(figure, "Losses before and after", transition,
            f"{percent(lower / len(scored))} have a lower loss" if len(scored) else "",
            f"{len(shown):,} of them drawn, at random" if len(shown) < len(scored) else "",
            f"{zeros:,} losses of 0 stand at the edge" if zeros else "")  # fmt: skip
    return figure


def _placed(losses: Floats, logarithmic: bool) -> tuple[Floats, tuple[float, float]]:
    """Where the losses are drawn, and the limits of their axis."""
    if not len(losses):
        return losses, (0.0, 1.0)
    if not logarithmic:
        room = 0.05 * (float(np.ptp(losses)) or 1.0)
        return losses, (float(losses.min()) - room, float(losses.max()) + room)
    positive = losses[losses > 0]
    low, high = (float(positive.min()), float(positive.max())) if len(positive) else (0.5, 1.0)
    drawn: Floats = np.maximum(losses, low / 1.5)  # 0 has no place on a logarithmic scale
    return drawn, (low / 2, high * 1.5)


def draw_shares(
    transition: Attributions, critical: CriticalExamples, rows: Mapping[Any, Mapping[str, Any]], what: str
) -> Figure:
    """For each label its share among the critical examples, with its confidence interval, and among all."""
    names = sorted(rows, key=lambda name: -abs(math.log2(max(rows[name]["ratio"], 1 / 64))))[:MOST_LABELS]
    names = [name for name in rows if name in set(names)]
    figure = new_figure(1.9 + max(0.34 * len(names), 1.2))
    axes = figure.subplots()
    place = np.arange(len(names))
    total = sum(row["all"] for row in rows.values())
    axes.barh(place, [rows[name]["all"] / total for name in names], height=0.72, color="#D9D9D9",
              label="of all examples with a score")  # fmt: skip
    for special, colour, text in ((False, COLOURS[0], f"of the {len(critical)} highest"), (True, BROKEN, "")):
        at = [i for i, name in enumerate(names) if (rows[name]["p_adjusted"] <= MARKED) is special]
        if at:
            shares = np.array([rows[names[i]]["share"] for i in at])
            ends = np.array([rows[names[i]]["share_interval"] for i in at]).T
            axes.errorbar(shares, at, xerr=np.maximum([shares - ends[0], ends[1] - shares], 0), fmt="o", markersize=5,
                          color=colour, elinewidth=1.4, clip_on=False,
                          label=text or f"the same, not by chance (adjusted p ≤ {MARKED:g})")  # fmt: skip
    axes.set_yticks(place, [f"{what} {name}" for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    finish(axes, "share, with a 95 % interval")
    guides(axes, "x")
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=10, frameon=False)
    hidden = f"{len(names)} of {len(rows)} {what}s, those furthest from chance" if len(names) < len(rows) else ""
    _titled(figure, f"{what.capitalize()}s of the critical examples", transition, hidden)
    return figure
