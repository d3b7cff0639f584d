"""Memorization over the epochs: accuracies, gap and losses, reliability, and the training examples one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.findings.examples.memorizing import LASTING, SHARE, Evolution
from learnscope.reading.gather import Floats
from learnscope.reading.words import count, num
from learnscope.report.instances import stretch
from learnscope.report.layout import INK, QUIET, head, new_figure, save
from learnscope.report.style import BROKEN, COLOURS, finish, lined, maybe_log

SPLITS = {"train": COLOURS[0], "test": COLOURS[1]}
SHOWN = 15
"""Suspicious labels that are shown one by one."""
BINS = 40
MANY = 100
"""Labels in one bar from which the scale is logarithmic above 10."""


@dataclass(frozen=True)
class Told:
    """All that the figures show; `suspects` are ranked, or missing for the reason in `no_suspects`."""

    epochs: list[int]
    curves: Mapping[str, Sequence[float]]
    evolution: Evolution
    calibration: Mapping[str, Mapping[str, Any]]
    proxies: pd.DataFrame
    suspects: pd.DataFrame | None
    no_suspects: str | None


def plot_memorized(told: Told, folder: Path) -> list[Path]:
    """`memorization.png`, and for classes `memorization_calibration.png` and `memorization_examples.png`."""
    figures = {"memorization": _curves(told)}
    if any(len(one["reliability"]) for one in told.calibration.values()):
        figures["memorization_calibration"] = _reliability(told)
    if "excess" in told.proxies:
        figures["memorization_examples"] = _examples(told)
    paths = [folder / f"{name}.png" for name in figures]
    for figure, path in zip(figures.values(), paths, strict=True):
        save(figure, path)
    return paths


def _curves(told: Told) -> Figure:
    known = bool(len(told.evolution.epochs))
    figure = new_figure(8.6 if known else 4.2)
    rows = figure.subplots(3 if known else 1, 1, sharex=True, squeeze=False)[:, 0]
    if known:
        _pair(rows[0], told, "accuracy")
        rows[0].set_ylim(-0.03, 1.03)
        rows[0].set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        _gap(rows[1], told)
    _pair(rows[-1], told, "loss")
    maybe_log(rows[-1], [_finite(told.curves[f"{split}_loss"]) for split in SPLITS])
    at = told.evolution.transition_epoch
    for place, axes in enumerate(rows):
        if at is not None:
            axes.axvline(at, color=BROKEN, linewidth=1.6, label=f"transition: epoch {at:,}")
        finish(
            axes,
            x="epoch" if axes is rows[-1] else "",
            y=("accuracy", "generalization gap", "loss")[place] if known else "loss",
        )
        lined(axes)
        _legend_above(axes)
    head(figure, "Memorization", _story(told))
    return figure


def _pair(axes: Axes, told: Told, name: str) -> None:
    # the first is larger, so that both are seen where they are equal
    for (split, colour), size in zip(SPLITS.items(), (7.0, 3.5), strict=True):
        axes.plot(told.epochs, told.curves[f"{split}_{name}"], color=colour, marker="o", markersize=size, linewidth=1.6,
                  label=split)  # fmt: skip


def _legend_above(axes: Axes) -> None:
    stretch(axes, "y", above=0.16)
    axes.legend(fontsize=9.5, framealpha=0.8, edgecolor="none", loc="upper left", ncols=4, columnspacing=1.4)


def _gap(axes: Axes, told: Told) -> None:
    found = told.evolution
    axes.plot(found.epochs, found.gaps, color=COLOURS[2], marker="o", markersize=3.5, linewidth=1.6,
              label="train − test accuracy")  # fmt: skip
    axes.axhline(0, color="#BBBBBB", linewidth=1.0, zorder=0)
    if found.peak_gap > 0:
        axes.axhline(SHARE * found.peak_gap, color=QUIET, linestyle=":", linewidth=1.4, label="half its peak")
    for place, epoch in enumerate(found.change_epochs):
        axes.axvline(epoch, color=COLOURS[3], linestyle="--", linewidth=1.2, label=None if place else "level changes")


def _story(told: Told) -> str:
    found = told.evolution
    parts = [count(len(told.epochs), "evaluation")]
    if found.epochs:
        parts.append(f"gap {num(found.final_gap)} at last, at most {num(found.peak_gap)} at epoch {found.peak_epoch:,}")
    if found.transition_epoch is None:
        parts.append(f"no transition: {found.reason}")
    else:
        at = found.transition_epoch
        parts.append(f"below half its peak at epoch {at:,} and for {LASTING} evaluations at least")
    return "; ".join(parts)


def _reliability(told: Told) -> Figure:
    figure = new_figure(5.4, 9.0)
    both = figure.subplots(1, 2, sharex=True, sharey=True)
    facts = []
    for axes, (split, colour) in zip(both, SPLITS.items(), strict=True):
        one = told.calibration[split]
        curve = one["reliability"].dropna()
        axes.plot([0, 1], [0, 1], color="#BBBBBB", linewidth=1.2, label="as confident as right")
        axes.vlines(curve["confidence"], curve["confidence"], curve["accuracy"], color=colour, alpha=0.35, linewidth=5)
        axes.plot(curve["confidence"], curve["accuracy"], color=colour, marker="o", markersize=5, linewidth=1.5,
                  label=f"{split}: {count(len(curve), 'bin')} of equal mass")  # fmt: skip
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        finish(axes, x="mean confidence", y="accuracy" if axes is both[0] else "")
        axes.grid(color="#EEEEEE", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(fontsize=10, framealpha=0.8, edgecolor="none", loc="lower right")
        error = one["calibration_error"]
        n = int(curve["n"].sum())
        facts.append(f"{split} {num(error)} (n = {n:,})" if np.isfinite(error) else f"{split}: {one['reason']}")
    head(figure, "Confidence and accuracy", f"epoch {told.epochs[-1]:,}; calibration error: {', '.join(facts)}")
    return figure


def _examples(told: Told) -> Figure:
    suspects = told.suspects
    figure = new_figure(5.2, 13.0 if suspects is not None else 6.5)
    panels = figure.subplots(1, 3 if suspects is not None else 1, squeeze=False)[0]
    excess = _finite(told.proxies["excess"])
    _histogram(panels[0], excess, COLOURS[0], "p(label) − its mean on test data of the class")
    panels[0].set_title("More confident than on test data", loc="left", fontsize=10, color=INK)
    facts = [f"epoch {told.epochs[-1]:,}, {count(len(told.proxies), 'training label')}"]
    if suspects is not None:
        scores = _finite(suspects["score"])
        _histogram(panels[1], scores, COLOURS[2], f"mean loss over {count(len(told.epochs), 'evaluation')}")
        panels[1].set_title("Doubted while learning", loc="left", fontsize=10, color=INK)
        _suspects(panels[2], suspects)
        who = "id" if "id" in suspects else "example"
        facts.append(f"on the right, {who}: its label → what the model held against it (?: nothing)")
    else:
        facts.append(f"no suspicious labels: {told.no_suspects}")
    left_out = int(told.proxies["excess"].isna().sum())
    facts += [f"{left_out:,} of a class that the test data lack left out on the left"] if left_out else []
    head(figure, "Training labels one by one (proxies of memorization)", "; ".join(facts))
    return figure


def _histogram(axes: Axes, values: Floats, colour: str, what: str) -> None:
    if len(values):
        counts, _, _ = axes.hist(values, bins=BINS, color=colour, alpha=0.85)
        if float(np.max(counts)) > MANY:  # a few suspicious ones beside many others must be seen
            axes.set_yscale("symlog", linthresh=10)
            ticks = [tick for tick in (0, 5, 10, *(10**power for power in range(2, 9))) if tick <= axes.get_ylim()[1]]
            axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
    finish(axes, x=what, y="training labels", size=10)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)


def _suspects(axes: Axes, suspects: pd.DataFrame) -> None:
    shown = suspects[np.isfinite(suspects["score"])].head(SHOWN)
    place = np.arange(len(shown)) + 0.5
    axes.barh(place, shown["score"], height=0.7, color=BROKEN, alpha=0.8)
    who = shown["id" if "id" in shown else "example"]
    held = shown["suggested"].astype(object).where(shown["suggested"].notna(), "?")
    axes.set_yticks(place, [f"{a}: {b} → {c}" for a, b, c in zip(who, shown["label"], held, strict=True)])
    axes.set_ylim(max(len(shown), 1), 0)
    finish(axes, x="mean loss", y="", size=10)
    axes.set_title("The most doubted labels", loc="left", fontsize=10, color=INK)


def _finite(values: Any) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    return found[np.isfinite(found)]
