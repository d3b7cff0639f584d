"""Bit widths: what every configuration takes and costs, and which of them are worth having."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from learnscope.findings.bits.bit_widths import MEASURES
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import Number
from learnscope.reading.audit_parts import Configuration, Tried
from learnscope.reading.audit_words import on
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, num
from learnscope.report.audit.marks import absent, dots, ends, limit, log_axis, log_span, name_rows, ruled, values
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET, head, new_figure
from learnscope.report.style import COLOURS, finish
from learnscope.store.reader import RunReader

FAMILIES = {
    "original": INK, "uniform": COLOURS[0], "mixed": COLOURS[2], "progressive": COLOURS[1], "attention": COLOURS[3],
    "mlp": COLOURS[4], "custom": COLOURS[5], "optimal": COLOURS[2],
}  # fmt: skip
NUMBERED = 12
"""Configurations on the frontier up to which each is named on the scatter plot."""
MOST = 40
"""Configurations that are drawn as rows; of more, those on the frontier and the best of the others."""


def colour_of(one: Configuration) -> str:
    return FAMILIES.get(one.family, COLOURS[5])


def on_frontier(one: Configuration) -> bool:
    return one["on_frontier"].value == 1


def configurations_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    """A row for every configuration: its size, how far its outputs are off, what the loss makes of it."""
    audit, cuts = read_audit(reader), cuts or Cuts()
    part = audit.configurations or audit.optimum
    if part is None or not part.items:
        return None
    every = sorted(part.items, key=lambda one: -_or_zero(one["packed_bytes"]))
    shown = sorted(every, key=lambda one: (not on_frontier(one), -_or_zero(one["packed_bytes"])))[:MOST]
    shown = [one for one in every if one in shown]
    figure = new_figure(2.0 + max(0.3 * len(shown), 1.2))
    sizes, cost, change = figure.subplots(1, 3)
    colours, full = [colour_of(one) for one in shown], [on_frontier(one) for one in shown]
    _size_column(sizes, shown, colours)
    name_rows(sizes, [one.name for one in shown], 28)
    measure = part.judged_by
    _cost_column(cost, [one[measure] for one in shown], colours, full, cuts.audit_kl if measure == "kl" else None)
    finish(cost, f"{MEASURES[measure]}{', nats' if measure == 'kl' else ''}", size=10)
    _change_column(change, [one["loss_change"] for one in shown], colours, full)
    for axes in (cost, change):
        ruled(axes)
        name_rows(axes, [""] * len(shown))
    handles = _families(shown) + ([_frontier_mark()] if any(full) else []) + cost.get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="lower center", ncols=5, fontsize=10, frameon=False)
    left = len(every) - len(shown)
    facts = [f"{count(len(shown), 'configuration')}{on(part.examples)}", "95 % intervals"]
    facts += [f"{left:,} more off the frontier are left out"] if left else []
    head(figure, "Configurations of bit widths", "; ".join(facts))
    return figure


def _or_zero(number: Number) -> float:
    return number.value or 0.0


def _families(items: Sequence[Configuration]) -> list[Line2D]:
    found = dict.fromkeys(one.family for one in items)
    return [Line2D([], [], marker="o", ls="", color=FAMILIES.get(name, COLOURS[5]), mfc="white", label=name)
            for name in found]  # fmt: skip


def _frontier_mark() -> Line2D:
    return Line2D([], [], marker="o", ls="", color=COLOURS[5], label="filled: on the Pareto frontier")


def _size_column(axes: Axes, items: Sequence[Configuration], colours: Sequence[str]) -> None:
    mb = values([one["packed_bytes"] for one in items]) / 1e6
    for row, (value, colour) in enumerate(zip(mb, colours, strict=True)):
        if np.isfinite(value):
            axes.barh(row, value, 0.6, color=colour, alpha=0.7)
            smaller = items[row]["compression"].value
            said = f"{num(value)} MB" + (f", ÷{num(smaller)}" if smaller is not None and smaller > 1.005 else "")
            axes.annotate(said, (value, row), (3, 0), textcoords="offset points", va="center", fontsize=8, color=QUIET)
    absent(axes, [one["packed_bytes"] for one in items])
    finish(axes, "size when packed, MB", size=10)
    if np.isfinite(mb).any():
        axes.set_xlim(0, 1.75 * float(np.nanmax(mb)))
    axes.locator_params(axis="x", nbins=4)


def _cost_column(
    axes: Axes, costs: Sequence[Number], colours: Sequence[str], full: Sequence[bool], most: float | None
) -> None:
    if most is not None:
        limit(axes, most, f"KL {num(most)}")
    low, high = ends(costs)
    span = log_span([*low, *high], *([most] if most is not None else []))
    if span is not None:
        log_axis(axes, *span, x=True, most=5)
    dots(axes, [n if n.value else Number(None) for n in costs], colours, full)
    absent(axes, [Number(None, why="zero") if n.value == 0 else n for n in costs])


def _change_column(axes: Axes, changes: Sequence[Number], colours: Sequence[str], full: Sequence[bool]) -> None:
    """Loss changes span decades and both signs: linear near none, logarithmic beyond."""
    axes.axvline(0, color=QUIET, lw=1)
    dots(axes, changes, colours, full)
    absent(axes, changes)
    low, high = ends(changes)
    known = np.abs(np.concatenate([low, high]))
    known = known[np.isfinite(known) & (known > 0)]
    if len(known) and known.max() > 30 * np.median(known):
        near = 10.0 ** np.floor(np.log10(np.median(known)))
        axes.set_xscale("symlog", linthresh=near, linscale=0.6)
        top = [near * 10.0**k for k in range(1, 12) if near * 10.0**k <= 2 * known.max()]
        ticks = [-near, 0.0, near, *top[1 :: max(1, len(top) // 2)]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    else:
        axes.locator_params(axis="x", nbins=4)
    finish(axes, "change of the loss", size=10)


def accuracy_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    """Accuracy and KL over the bits of a weight, with the frontier."""
    audit, cuts = read_audit(reader), cuts or Cuts()
    part = audit.configurations or audit.optimum
    if part is None:
        return None
    items = [one for one in part.items if one["model_bits"].value is not None]
    name, label = next(((n, text) for n, text in SHARES if any(one[n].value is not None for one in items)), ("", ""))
    if not items or not name:
        return None
    figure = new_figure(4.9)
    left, right = figure.subplots(1, 2)
    numbered = _frontier(items, "model_bits")
    _scatter(left, items, numbered, name)
    finish(left, "bits a weight, whole model", label, size=10)
    cost_over_bits(right, part, cuts, "model_bits")
    finish(right, "bits a weight, whole model", MEASURES[part.judged_by], size=10)
    handles = _families(items) + right.get_legend_handles_labels()[0]
    handles += [Line2D([], [], ls="", marker=f"${place}$", color=INK, label=shorten(one.name, 24))
                for place, one in enumerate(numbered, 1) if len(numbered) <= NUMBERED]  # fmt: skip
    figure.legend(handles=handles, loc="lower center", ncols=5, fontsize=9, frameon=False)
    head(figure, "Accuracy over bits", f"{count(len(items), 'configuration')}{on(part.examples)}; filled: on the "
         "Pareto frontier of size and " + MEASURES[part.judged_by])  # fmt: skip
    return figure


SHARES = (("accuracy", "accuracy"), ("top1_agree", "same top prediction, share"), ("cosine", "cosine of the outputs"))


def _frontier(items: Sequence[Configuration], x: str) -> list[Configuration]:
    return sorted([one for one in items if on_frontier(one)], key=lambda one: -_or_zero(one[x]))


def _scatter(axes: Axes, items: Sequence[Configuration], numbered: Sequence[Configuration], name: str) -> None:
    for one in items:
        (x, y), (low, high) = _at(one, "model_bits", name), ends([one[name]])
        axes.plot([x, x], [low[0], high[0]], color=colour_of(one), lw=1.4)
        axes.plot(x, y, "o", color=colour_of(one), mfc="white", ms=6, zorder=2 if on_frontier(one) else 5)
    _number(axes, numbered, "model_bits", name)
    ruled(axes)


def _number(axes: Axes, numbered: Sequence[Configuration], x: str, y: str, *, numbers: bool = True) -> None:
    """The frontier as a line, its points as numbers that the legend names."""
    known = [(place, one) for place, one in enumerate(numbered, 1) if np.isfinite(_at(one, x, y)).all()]
    axes.plot(*np.array([_at(one, x, y) for _, one in known]).reshape(-1, 2).T, "-", color=QUIET, lw=1, zorder=1)
    for place, one in known:
        at = _at(one, x, y)
        axes.plot(*at, "o", color=colour_of(one), mec="white", ms=12 if numbers else 8, zorder=3)
        said = f"{place}" if numbers and len(numbered) <= NUMBERED else ""
        axes.annotate(said, at, ha="center", va="center", fontsize=8, color="white", fontweight="bold", zorder=4)


def _at(one: Configuration, x: str, y: str) -> tuple[float, float]:
    found = values([one[x], one[y]])
    return float(found[0]), float(found[1])


def cost_over_bits(axes: Axes, part: Tried, cuts: Cuts, x: str, *, numbers: bool = True) -> None:
    """How far outputs are off, on a logarithmic scale; what is exactly the same has no place on it."""
    measure = part.judged_by
    known = [one for one in part.items if _or_zero(one[measure]) > 0 and one[x].value is not None]
    for one in known:
        low, high = ends([one[measure]])
        axes.plot(values([one[x]] * 2), [max(low[0], 1e-12), high[0]], color=colour_of(one), lw=1.4)
        place = _at(one, x, measure)
        axes.plot(*place, "o", color=colour_of(one), mfc="white", ms=6, zorder=2 if on_frontier(one) else 5)
    placed = [
        one if one in known else Configuration(scope=one.name, family=one.family) for one in _frontier(part.items, x)
    ]
    _number(axes, placed, x, measure, numbers=numbers)
    if measure == "kl":
        limit(axes, cuts.audit_kl, f"KL {num(cuts.audit_kl)}", across=True)
    span = log_span([_or_zero(one[measure]) for one in known], *([cuts.audit_kl] if measure == "kl" else []))
    if span is not None:
        log_axis(axes, span[0] / 2, span[1] * 2)
    ruled(axes)
