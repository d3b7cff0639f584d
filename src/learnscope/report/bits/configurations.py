"""Figures of bit widths: the size and the damage of every configuration, and the Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from learnscope.findings.bits.frontier import MEASURES
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import Number
from learnscope.reading.audit_parts import Configuration, Tried
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, num
from learnscope.report.audit.marks import absent, dots, ends, limit, log_axis, log_span, name_rows, values
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET, head, new_figure
from learnscope.report.style import COLOURS, finish, guides
from learnscope.store.reader import RunReader

FAMILIES = {
    "original": INK, "uniform": COLOURS[0], "mixed": COLOURS[2], "progressive": COLOURS[1], "attention": COLOURS[3],
    "mlp": COLOURS[4], "custom": COLOURS[5], "optimal": COLOURS[2], "half": COLOURS[1], "group": COLOURS[3],
    "tensor": COLOURS[4], "zero point": COLOURS[4], "blocks": COLOURS[5], "activations": COLOURS[5],
}  # fmt: skip
SHARES = {"accuracy": "accuracy", "top1_agree": "same top prediction, share", "cosine": "cosine of the outputs"}
NUMBERED = 12
"""Configurations on the frontier up to which each is named on the scatter plot."""
MOST = 40
"""Configurations that are drawn as rows; of more, those on the frontier and the best of the others."""
BITS = {"model_bits": "bits a weight, whole model", "block_bits": "bits a weight, in blocks"}
WIDE = 1.5
"""Where the bits of the whole model span less, weights outside of blocks are most of them and hide the differences."""


def bits_axis(items: Sequence[Configuration]) -> tuple[str, str]:
    """What is drawn along the bits, and its label: those of the blocks where most of the rest is not quantised."""
    for name, label in BITS.items():
        bits = [value for item in items if item.name != "original" and (value := item[name].value) is not None]
        if bits and max(bits) >= WIDE * min(bits):
            return name, label
    return next(iter(BITS.items()))


def _colour(item: Configuration) -> str:
    return FAMILIES.get(item.family, COLOURS[5])


def _on_frontier(item: Configuration) -> bool:
    return item["on_frontier"].value == 1


def _or_zero(number: Number) -> float:
    return number.value or 0.0


def configurations_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    """A row for every configuration: its size, the distance of its outputs, and the change of the loss."""
    audit, cuts = read_audit(reader), cuts or Cuts()
    part = audit.configurations or audit.optimum
    if part is None or not part.items:
        return None
    ordered = sorted(part.items, key=lambda item: -_or_zero(item["packed_bytes"]))
    first = sorted(ordered, key=lambda item: not _on_frontier(item))[:MOST]
    shown = [item for item in ordered if item in first]
    figure = new_figure(2.0 + max(0.3 * len(shown), 1.2))
    sizes, cost, change = figure.subplots(1, 3)
    colours, filled = [_colour(item) for item in shown], [_on_frontier(item) for item in shown]
    _size_column(sizes, shown, colours)
    name_rows(sizes, [item.name for item in shown], 28)
    measure = part.judged_by
    _cost_column(cost, [item[measure] for item in shown], colours, filled, cuts.audit_kl if measure == "kl" else None)
    finish(cost, f"{MEASURES[measure]}{', nats' if measure == 'kl' else ''}", size=10)
    _change_column(change, [item["loss_change"] for item in shown], colours, filled)
    for axes in (cost, change):
        guides(axes, "both")
        name_rows(axes, [""] * len(shown))
    handles = _families(shown)
    if any(filled):
        handles.append(Line2D([], [], marker="o", ls="", color=COLOURS[5], label="filled: on the Pareto frontier"))
    handles += cost.get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="lower center", ncols=5, fontsize=10, frameon=False)
    left_out = len(ordered) - len(shown)
    facts = f"{count(len(shown), 'configuration')}{part.on}; 95 % intervals"
    facts += f"; {left_out:,} more off the frontier are left out" if left_out else ""
    head(figure, "Configurations of bit widths", facts)
    return figure


def _families(items: Sequence[Configuration]) -> list[Line2D]:
    colours = {item.family: _colour(item) for item in items}
    return [Line2D([], [], marker="o", ls="", color=c, mfc="white", label=name) for name, c in colours.items()]


def _size_column(axes: Axes, items: Sequence[Configuration], colours: Sequence[str]) -> None:
    sizes = [item["packed_bytes"] for item in items]
    mb = values(sizes) / 1e6
    for row, (value, colour) in enumerate(zip(mb, colours, strict=True)):
        if np.isfinite(value):
            axes.barh(row, value, 0.6, color=colour, alpha=0.7)
            smaller = items[row]["compression"].value
            text = f"{num(value)} MB" + (f", ÷{num(smaller)}" if smaller is not None and smaller > 1.005 else "")
            axes.annotate(text, (value, row), (3, 0), textcoords="offset points", va="center", fontsize=8, color=QUIET)
    absent(axes, sizes)
    finish(axes, "size when packed, MB", size=10)
    if np.isfinite(mb).any():
        axes.set_xlim(0, 1.75 * float(np.nanmax(mb)))
    axes.locator_params(axis="x", nbins=4)


def _cost_column(
    axes: Axes, costs: Sequence[Number], colours: Sequence[str], filled: Sequence[bool], most: float | None
) -> None:
    if most is not None:
        limit(axes, most, f"KL {num(most)}")
    span = log_span(np.concatenate(ends(costs)), *([] if most is None else [most]))
    if span is not None:
        log_axis(axes, *span, x=True, most=5)
    dots(axes, [n if n.value else Number(None) for n in costs], colours, filled)
    absent(axes, [Number(None, reason="zero") if n.value == 0 else n for n in costs])


def _change_column(axes: Axes, changes: Sequence[Number], colours: Sequence[str], filled: Sequence[bool]) -> None:
    """Loss changes span decades and both signs: linear near 0, logarithmic beyond."""
    axes.axvline(0, color=QUIET, lw=1)
    dots(axes, changes, colours, filled)
    absent(axes, changes)
    sizes = np.abs(np.concatenate(ends(changes)))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if len(sizes) and sizes.max() > 30 * np.median(sizes):
        near = 10.0 ** np.floor(np.log10(np.median(sizes)))
        axes.set_xscale("symlog", linthresh=near, linscale=0.6)
        top = [near * 10.0**k for k in range(1, 12) if near * 10.0**k <= 2 * sizes.max()]
        ticks = [-near, 0.0, near, *top[1 :: max(1, len(top) // 2)]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    else:
        axes.locator_params(axis="x", nbins=4)
    finish(axes, "change of the loss", size=10)


def accuracy_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    audit, cuts = read_audit(reader), cuts or Cuts()
    part = audit.configurations or audit.optimum
    items = [] if part is None else [item for item in part.items if item["model_bits"].value is not None]
    axis, label = bits_axis(items)
    share = next((name for name in SHARES if any(item[name].value is not None for item in items)), None)
    if part is None or share is None:
        return None
    figure = new_figure(4.9)
    left, right = figure.subplots(1, 2)
    numbered = _frontier(items)
    _points(left, items, (axis, share))
    _number(left, numbered, (axis, share))
    guides(left, "both")
    finish(left, label, SHARES[share], size=10)
    cost_over_bits(right, part, cuts)
    finish(right, label, MEASURES[part.judged_by], size=10)
    handles = _families(items) + right.get_legend_handles_labels()[0]
    if len(numbered) <= NUMBERED:
        handles += [Line2D([], [], ls="", marker=f"${place}$", color=INK, label=shorten(item.name, 24))
                    for place, item in enumerate(numbered, 1)]  # fmt: skip
    figure.legend(handles=handles, loc="lower center", ncols=5, fontsize=9, frameon=False)
    head(figure, "Accuracy over bits", f"{count(len(items), 'configuration')}{part.on}; "
         "filled: on the Pareto frontier of size and " + MEASURES[part.judged_by])  # fmt: skip
    return figure


def cost_over_bits(axes: Axes, part: Tried, cuts: Cuts, *, numbers: bool = True) -> None:
    """How far outputs are off, on a logarithmic scale, which has no place for 0."""
    measure = part.judged_by
    axis, _ = bits_axis(part.items)
    shown = [item for item in part.items if _or_zero(item[measure]) > 0 and item[axis].value is not None]
    _points(axes, shown, (axis, measure), 1e-12)
    # a configuration that is not shown keeps its number
    placed = [item if item in shown else Configuration(family=item.family) for item in _frontier(part.items)]
    _number(axes, placed, (axis, measure), numbers=numbers)
    most = [cuts.audit_kl] if measure == "kl" else []
    for value in most:
        limit(axes, value, f"KL {num(value)}", across=True)
    span = log_span([_or_zero(item[measure]) for item in shown], *most)
    if span is not None:
        log_axis(axes, span[0] / 2, span[1] * 2)
    guides(axes, "both")


def _frontier(items: Sequence[Configuration]) -> list[Configuration]:
    return sorted([item for item in items if _on_frontier(item)], key=lambda item: -_or_zero(item["model_bits"]))


def _points(axes: Axes, items: Sequence[Configuration], along: tuple[str, str], least: float = -np.inf) -> None:
    for item in items:
        (x, y), ([low], [high]), colour = _at(item, along), ends([item[along[1]]]), _colour(item)
        axes.plot([x, x], [max(low, least), high], color=colour, lw=1.4)
        axes.plot(x, y, "o", color=colour, mfc="white", ms=6, zorder=2 if _on_frontier(item) else 5)


def _number(axes: Axes, numbered: Sequence[Configuration], along: tuple[str, str], *, numbers: bool = True) -> None:
    """The frontier as a line, its points as numbers that the legend names."""
    points = {place: (_at(item, along), _colour(item)) for place, item in enumerate(numbered, 1)}
    points = {place: point for place, point in points.items() if np.isfinite(point[0]).all()}
    axes.plot(*np.array([at for at, _ in points.values()]).reshape(-1, 2).T, "-", color=QUIET, lw=1, zorder=1)
    for place, (at, colour) in points.items():
        axes.plot(*at, "o", color=colour, mec="white", ms=12 if numbers else 8, zorder=3)
        text = f"{place}" if numbers and len(numbered) <= NUMBERED else ""
        axes.annotate(text, at, ha="center", va="center", fontsize=8, color="white", fontweight="bold", zorder=4)


def _at(item: Configuration, along: tuple[str, str]) -> tuple[float, float]:
    x, y = values([item[name] for name in along])
    return float(x), float(y)
