"""Outputs with a low-rank update, and the share of the update that each rank captures."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.quantities.updates import LowRankQuality
from learnscope.reading.words import count, num
from learnscope.report.instances import Part, at_foot, by_instance, has_zeros, log_axis, log_foot, numbers, points, span
from learnscope.report.layout import QUIET
from learnscope.report.style import COLOURS, finish, guides
from learnscope.report.updates.sparse import KL, distance
from learnscope.store.reader import RunReader

NAMED = 9
"""Most ranks that are named below the axes."""


def low_rank_figure(reader: RunReader) -> Figure | None:
    return by_instance(reader, LowRankQuality, "Outputs with a low-rank update", _parts)


def _parts(reader: RunReader, label: str) -> list[Part]:
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
