"""Outputs with a sparse update, by the share of entries kept and over the steps, and with a low-rank one, by rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from learnscope.quantities.outputs import VariantOutputs
from learnscope.quantities.updates import LowRankQuality, SparseQuality
from learnscope.reading.gather import Floats
from learnscope.reading.words import count, num
from learnscope.report.broken import breaks
from learnscope.report.instances import (
    Part,
    at_foot,
    by_instance,
    has_zeros,
    log_axis,
    log_foot,
    numbers,
    points,
    span,
    stretch,
    without_value,
)
from learnscope.report.layout import INK, QUIET
from learnscope.report.style import COLOURS, DASHES, finish, guides, lined, plain
from learnscope.store.reader import RunReader

MASKS = {
    "random": ("as many of all, at random", COLOURS[5], "-", 3.6),
    "random_changed": ("as many of the changed, at random", COLOURS[1], "--", 1.8),
    "magnitude": ("the largest changes", COLOURS[0], "-", 1.8),
}
"""Label, colour, dash and width of each mask; the first is wide, so that it shows below the others."""
KL, SQUARED = "KL, nats", "mean squared difference of the outputs"
"""How far the outputs are from the model's own; regression has no KL."""
TOGETHER = (0.16, 0.1)
"""Points closer than these shares of the axes get one label."""
NAMED = 9
"""Most ranks that are named below the axes."""


def sparse_figure(reader: RunReader) -> Figure | None:
    return by_instance(reader, SparseQuality, "Outputs with a sparse update", _sparse_parts)


def distance(reader: RunReader, label: str, outputs: type[VariantOutputs], *by: str) -> tuple[str, pd.DataFrame] | None:
    """The first of the distances that has a value: what it is called, and its numbers."""
    for quantity, called in ((outputs.kl, KL), (outputs.mse, SQUARED)):
        frame = numbers(reader, label, quantity, *by)
        if len(frame) and np.isfinite(frame["value"].to_numpy(np.float64)).any():
            return called, frame
    return None


def _sparse_parts(reader: RunReader, label: str) -> list[Part]:
    distances = distance(reader, label, SparseQuality, "mask", "threshold")
    if distances is None:
        return []
    measure, frame = distances
    frame = frame.rename(columns={"value": "far"})
    last = int(frame[frame["far"].notna()]["step"].iloc[-1])
    when = f"last of {count(frame['step'].nunique(), 'measurement')}: {span(reader, label, last)}"
    missing = without_value(frame["far"], measure.partition(",")[0])
    shares = numbers(reader, label, SparseQuality.kept_share, "mask", "threshold").rename(columns={"value": "kept"})
    by = ["step", "mask", "threshold"]
    both = frame[frame["step"] == last].merge(shares[[*by, "kept"]], on=by).dropna(subset=["far", "kept"])
    both = both[both["mask"].isin(MASKS)].sort_values("threshold")
    magnitude = frame[frame["mask"] == "magnitude"]
    parts = []
    if len(both):
        title, zeros = "last measurement, by what is kept", has_zeros(both["far"])
        parts.append(Part(title, lambda axes: _kept(axes, both, measure), (when, missing), zeros))
    if magnitude["far"].notna().any():
        title, zeros = "largest changes kept, over the steps", has_zeros(magnitude["far"])
        parts.append(Part(title, lambda axes: _over_steps(axes, magnitude, measure, reader), zeros=zeros))
    return parts


def _kept(axes: Axes, frame: pd.DataFrame, measure: str) -> None:
    shares, far = frame["kept"].to_numpy(np.float64), frame["far"].to_numpy(np.float64)
    above = shares[shares > 0]
    # similar shares are easier to distinguish on a linear scale
    wide = bool(len(above)) and float(above.max()) > 10 * float(above.min())
    left, foot = log_foot([shares]) if wide else None, log_foot([far])
    for mask, (label, colour, dash, width) in MASKS.items():
        x, y = (frame[frame["mask"] == mask][column].to_numpy(np.float64) for column in ("kept", "far"))
        if len(x):
            points(axes, at_foot(x, left), y, foot, colour, label, dash, width)
    guides(axes)
    log_axis(axes, "y", [far], foot)
    if wide:
        log_axis(axes, "x", [shares], left, "%")
    else:
        axes.margins(x=0.12)
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.5g} %")
        if float(shares.max()) <= 1:
            low, high = axes.get_xlim()
            axes.set_xticks([tick for tick in axes.get_xticks() if low <= tick <= min(high, 1 + 1e-9)])
            axes.set_xlim(low, high)
    stretch(axes, "x", below=0.1)
    finish(axes, x="share of the entries that is kept", y=measure)
    largest = frame[frame["mask"] == "magnitude"]
    if len(largest):
        x, y = at_foot(largest["kept"].to_numpy(np.float64), left), at_foot(largest["far"].to_numpy(np.float64), foot)
        _name_thresholds(axes, x, y, largest["threshold"].astype(float).tolist())


def _name_thresholds(axes: Axes, x: Floats, y: Floats, thresholds: Sequence[float]) -> None:
    """Labels below and left of the points, as the line falls to the right; one label for points close together."""
    to_share = axes.transData + axes.transAxes.inverted()
    places = to_share.transform(np.column_stack([x, y]))
    groups: list[list[int]] = []
    for i, place in enumerate(places):
        near = [g for g in groups if (np.abs(place - places[g[0]]) < TOGETHER).all()]
        if near:
            near[0].append(i)
        else:
            groups.append([i])
    for group in groups:
        label = "t = " + ", ".join(plain(thresholds[i]) if thresholds[i] else "0" for i in group)
        fits = places[group[0]][0] > 0.02 * len(label)
        axes.annotate(
            label, (x[group[0]], y[group[0]]), xytext=(-5 if fits else 0, -5), textcoords="offset points", va="top",
            ha="right" if fits else "left", fontsize=9, color=INK,
        )  # fmt: skip


def _over_steps(axes: Axes, frame: pd.DataFrame, measure: str, reader: RunReader) -> None:
    foot = log_foot([frame["far"].to_numpy(np.float64)])
    colours = colormaps["viridis"](np.linspace(0, 0.8, frame["threshold"].nunique()))
    for i, (_, part) in enumerate(frame.groupby("threshold")):
        threshold = float(part["threshold"].iloc[0])
        label = f"t = {plain(threshold) if threshold else '0'}"
        x, y = (part[column].to_numpy(np.float64) for column in ("step", "far"))
        points(axes, x, y, foot, to_hex(colours[i]), label, DASHES[i % len(DASHES)])
    lined(axes, ticks=5)
    log_axis(axes, "y", [frame["far"].to_numpy(np.float64)], foot)
    finish(axes, x="step", y=measure)
    breaks(reader).shade(axes)


def low_rank_figure(reader: RunReader) -> Figure | None:
    return by_instance(reader, LowRankQuality, "Outputs with a low-rank update", _low_rank_parts)


def _low_rank_parts(reader: RunReader, label: str) -> list[Part]:
    parts = []
    distances = distance(reader, label, LowRankQuality, "rank")
    if distances is not None:
        measure, frame = distances
        last = int(frame[frame["value"].notna()]["step"].iloc[-1])
        at_last = frame[frame["step"] == last]
        recommended = numbers(reader, label, LowRankQuality.recommended_rank, "kl_bound")
        recommended = recommended[recommended["step"] == last]
        facts = [f"last of {count(frame['step'].nunique(), 'measurement')}: {span(reader, label, last)}"]
        missing = int(at_last["value"].isna().sum())
        facts += [f"{count(missing, 'rank')} without a value"] if missing else []
        title, zeros = "last measurement, by rank", has_zeros(at_last["value"])
        parts.append(Part(title, lambda axes: _far(axes, at_last, recommended, measure), facts, zeros))
    energy = numbers(reader, label, LowRankQuality.energy_captured, "rank").dropna(subset="value")
    if len(energy):
        energy = energy[energy["step"] == energy["step"].iloc[-1]]
        parts.append(Part("share of ‖ΔW‖² that each rank holds", lambda axes: _energy(axes, energy)))
    return parts


def _far(axes: Axes, frame: pd.DataFrame, recommended: pd.DataFrame, measure: str) -> None:
    ranks, far = frame["rank"].astype(int).tolist(), frame["value"].to_numpy(np.float64)
    bound = float(recommended["kl_bound"].iloc[-1]) if measure == KL and len(recommended) else None
    scale = [far, np.array([bound])] if bound is not None else [far]
    foot = log_foot(scale)
    places = np.arange(len(ranks), dtype=np.float64)
    points(axes, places, far, foot, COLOURS[0], "")
    if bound is not None:
        axes.axhline(bound, color=QUIET, linestyle="--", linewidth=1.2, label=f"near enough: {num(bound)}")
        enough = float(recommended["value"].iloc[-1])
        if enough in ranks:
            at = ranks.index(int(enough))
            axes.plot(places[at], at_foot(far, foot)[at], marker="o", markersize=12, markerfacecolor="none",
                      color=COLOURS[2], linestyle="none", markeredgewidth=2,
                      label=f"recommended rank: {enough:g}")  # fmt: skip
        else:
            axes.plot([], [], linestyle="none", label="no rank is near enough")
    guides(axes)
    log_axis(axes, "y", scale, foot)
    _name_ranks(axes, ranks)
    finish(axes, x="rank of the update", y=measure)


def _energy(axes: Axes, frame: pd.DataFrame) -> None:
    ranks, shares = frame["rank"].astype(int).tolist(), frame["value"].to_numpy(np.float64)
    points(axes, np.arange(len(ranks), dtype=np.float64), shares, None, COLOURS[0], "")
    guides(axes)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    _name_ranks(axes, ranks)
    finish(axes, x="rank of the update", y="energy captured")


def _name_ranks(axes: Axes, ranks: list[int]) -> None:
    """Ranks at equal distances: they are mostly powers of two."""
    named: list[int] = list(range(0, len(ranks), math.ceil(len(ranks) / NAMED)))
    axes.set_xticks(named, [f"{ranks[i]:,}" if ranks[i] else "no\nupdate" for i in named])
    axes.set_xlim(-0.5, len(ranks) - 0.5)
