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
from learnscope.report.layout import INK, QUIET, head, new_figure, panels_on, save_all
from learnscope.report.style import BROKEN, COLOURS, finish, guides, lined, maybe_log

SPLITS = {"train": COLOURS[0], "test": COLOURS[1]}
SHOWN = 15
BINS = 40
MANY = 100
"""With more labels in one bar, the scale is logarithmic above 10."""


@dataclass(frozen=True)
class MemorizationData:
    """The data of the figures; `suspects` are ranked, or None for the reason in `no_suspects`."""

    epochs: list[int]
    curves: Mapping[str, Sequence[float]]
    evolution: Evolution
    calibration: Mapping[str, Mapping[str, Any]]
    proxies: pd.DataFrame
    suspects: pd.DataFrame | None
    no_suspects: str | None


def plot_memorized(data: MemorizationData, folder: Path) -> list[Path]:
    """`memorization.png`, and for classes `memorization_calibration.png` and `memorization_examples.png`."""
    figures = {"memorization": _curves(data)}
    if any(len(split["reliability"]) for split in data.calibration.values()):
        figures["memorization_calibration"] = _reliability(data)
    if "excess" in data.proxies:
        figures["memorization_examples"] = _examples(data)
    return save_all(figures, folder)


def _curves(data: MemorizationData) -> Figure:
    names = ["accuracy", "generalization gap", "loss"] if len(data.evolution.epochs) else ["loss"]
    figure = new_figure(8.6 if len(names) > 1 else 4.2)
    at = data.evolution.transition_epoch
    for axes, name, lowest in panels_on(figure.subplots(len(names), 1, sharex=True, squeeze=False), names):
        if name == "generalization gap":
            gap = data.evolution
            axes.plot(gap.epochs, gap.gaps, color=COLOURS[2], marker="o", markersize=3.5, linewidth=1.6,
                      label="train − test accuracy")  # fmt: skip
            axes.axhline(0, color="#BBBBBB", linewidth=1.0, zorder=0)
            if gap.peak_gap > 0:
                axes.axhline(SHARE * gap.peak_gap, color=QUIET, linestyle=":", linewidth=1.4, label="half its peak")
            for place, epoch in enumerate(gap.change_epochs):
                label = None if place else "jumps"
                axes.axvline(epoch, color=COLOURS[3], linestyle="--", linewidth=1.2, label=label)
        else:
            # larger marks for the first, so that both can be seen where they are equal
            for (split, colour), size in zip(SPLITS.items(), (7.0, 3.5), strict=True):
                axes.plot(data.epochs, data.curves[f"{split}_{name}"], color=colour, marker="o", markersize=size,
                          linewidth=1.6, label=split)  # fmt: skip
        if name == "accuracy":
            axes.set_ylim(-0.03, 1.03)
            axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        if name == "loss":
            maybe_log(axes, [_finite(data.curves[f"{split}_loss"]) for split in SPLITS])
        if at is not None:
            axes.axvline(at, color=BROKEN, linewidth=1.6, label=f"transition: epoch {at:,}")
        finish(axes, x="epoch" if lowest else "", y=name)
        lined(axes)
        stretch(axes, "y", above=0.16)
        axes.legend(fontsize=9.5, framealpha=0.8, edgecolor="none", loc="upper left", ncols=4, columnspacing=1.4)
    head(figure, "Memorization", _facts(data))
    return figure


def _facts(data: MemorizationData) -> str:
    evolution = data.evolution
    parts = [count(len(data.epochs), "evaluation")]
    if evolution.epochs:
        peak = f"{num(evolution.peak_gap)} at epoch {evolution.peak_epoch:,}"
        parts.append(f"gap {num(evolution.final_gap)} at last, at most {peak}")
    if evolution.transition_epoch is None:
        parts.append(f"no transition: {evolution.reason}")
    else:
        at = evolution.transition_epoch
        parts.append(f"below half its peak at epoch {at:,} and for {LASTING} evaluations at least")
    return "; ".join(parts)


def _reliability(data: MemorizationData) -> Figure:
    figure = new_figure(5.4, 9.0)
    both = figure.subplots(1, 2, sharex=True, sharey=True)
    facts = []
    for axes, (split, colour) in zip(both, SPLITS.items(), strict=True):
        calibration = data.calibration[split]
        curve = calibration["reliability"].dropna()
        axes.plot([0, 1], [0, 1], color="#BBBBBB", linewidth=1.2, label="as confident as right")
        axes.vlines(curve["confidence"], curve["confidence"], curve["accuracy"], color=colour, alpha=0.35, linewidth=5)
        axes.plot(curve["confidence"], curve["accuracy"], color=colour, marker="o", markersize=5, linewidth=1.5,
                  label=f"{split}: {count(len(curve), 'bin')} of equal mass")  # fmt: skip
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        finish(axes, x="mean confidence", y="accuracy" if axes is both[0] else "")
        guides(axes, "both", "#EEEEEE")
        axes.legend(fontsize=10, framealpha=0.8, edgecolor="none", loc="lower right")
        error = calibration["calibration_error"]
        n = int(curve["n"].sum())
        facts.append(f"{split} {num(error)} (n = {n:,})" if np.isfinite(error) else f"{split}: {calibration['reason']}")
    head(figure, "Confidence and accuracy", f"epoch {data.epochs[-1]:,}; calibration error: {', '.join(facts)}")
    return figure


def _examples(data: MemorizationData) -> Figure:
    suspects = data.suspects
    figure = new_figure(5.2, 13.0 if suspects is not None else 6.5)
    panels = figure.subplots(1, 3 if suspects is not None else 1, squeeze=False)[0]
    excess = _finite(data.proxies["excess"])
    _histogram(panels[0], excess, COLOURS[0], "p(label) − its mean on test data of the class")
    panels[0].set_title("More confident than on test data", loc="left", fontsize=10, color=INK)
    facts = [f"epoch {data.epochs[-1]:,}, {count(len(data.proxies), 'training label')}"]
    if suspects is not None:
        scores = _finite(suspects["score"])
        _histogram(panels[1], scores, COLOURS[2], f"mean loss over {count(len(data.epochs), 'evaluation')}")
        panels[1].set_title("Doubted while learning", loc="left", fontsize=10, color=INK)
        _suspects(panels[2], suspects)
        who = "id" if "id" in suspects else "example"
        facts.append(f"on the right, {who}: its label → what the model held against it (?: nothing)")
    else:
        facts.append(f"no suspicious labels: {data.no_suspects}")
    left_out = int(data.proxies["excess"].isna().sum())
    facts += [f"{left_out:,} of a class that the test data lack left out on the left"] if left_out else []
    head(figure, "Training labels one by one (proxies of memorization)", "; ".join(facts))
    return figure


def _histogram(axes: Axes, values: Floats, colour: str, what: str) -> None:
    if len(values):
        counts, _, _ = axes.hist(values, bins=BINS, color=colour, alpha=0.85)
        if float(np.max(counts)) > MANY:  # so that a few suspicious labels can be seen beside many others
            axes.set_yscale("symlog", linthresh=10)
            ticks = [tick for tick in (0, 5, 10, *(10**power for power in range(2, 9))) if tick <= axes.get_ylim()[1]]
            axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
    finish(axes, x=what, y="training labels", size=10)
    guides(axes)


def _suspects(axes: Axes, suspects: pd.DataFrame) -> None:
    shown = suspects[np.isfinite(suspects["score"])].head(SHOWN)
    place = np.arange(len(shown)) + 0.5
    axes.barh(place, shown["score"], height=0.7, color=BROKEN, alpha=0.8)
    names = shown["id" if "id" in shown else "example"]
    suggested = shown["suggested"].astype(object).where(shown["suggested"].notna(), "?")
    axes.set_yticks(place, [f"{a}: {b} → {c}" for a, b, c in zip(names, shown["label"], suggested, strict=True)])
    axes.set_ylim(max(len(shown), 1), 0)
    finish(axes, x="mean loss", y="", size=10)
    axes.set_title("The most doubted labels", loc="left", fontsize=10, color=INK)


def _finite(values: Any) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[np.isfinite(numbers)]
