"""The panels of telemetry figures: curves and cells, the same in a figure of their own and in the overview."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from learnscope.reading.gather import Floats
from learnscope.reading.other_numbers import is_accuracy
from learnscope.reading.words import listed, num
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET
from learnscope.report.style import COLOURS, DASHES
from learnscope.report.telemetry.curves import Line, draw_lines, mark_epochs
from learnscope.report.telemetry.data import BATCH, GROUPED, HOLDOUT, LOGGED, Telemetry, class_shares, same_names
from learnscope.report.telemetry.examples import Examples, paint, paint_examples

STYLED = len(COLOURS) * len(DASHES)


@dataclass(frozen=True)
class Panel:
    """One pair of axes, with curves or with cells."""

    title: str
    y: str = ""
    lines: Sequence[Line] = ()
    facts: Sequence[str] = ()
    height: float = 3.4
    log: bool = True
    """Whether the scale of the curves may be logarithmic."""
    zeros: bool = False
    """Whether a logarithmic scale has zeros at its foot."""
    shared: bool = False
    """Whether the legend is that of the groups, which panels share."""
    decorate: Callable[[Axes, bool], object] | None = None
    """Called with the axes, and whether they are small, to add to the curves."""
    cells: Callable[[Axes, bool], ScalarMappable] | None = None
    """Draws cells in place of curves, and returns them for the colour bar."""
    bar: str = ""

    def draw(self, axes: Axes, t: Telemetry, small: bool) -> ScalarMappable | None:
        if self.cells is not None:
            mesh = self.cells(axes, small)
            mark_epochs(axes, t, over=True)
            return mesh
        draw_lines(axes, t, self.lines, small, scale=self.log, zeros=self.zeros)
        if self.decorate is not None:
            self.decorate(axes, small)
        return None


def group_panel(t: Telemetry, section: str, title: str, y: str) -> Panel:
    """A curve for all parameters together and one for every group, in the same colours in every section."""
    group_names = same_names(t)
    groups = (name for name in dict.fromkeys(group_names.values()) if name != "overall")
    places = {name: place for place, name in enumerate(groups)}
    lines = []
    for name in dict.fromkeys(group_names[key] for key in t.sections[section]):
        values = next(v for key, v in t.sections[section].items() if group_names[key] == name)
        if np.isfinite(values).any():
            lines.append(_group_line(name, values, places, noisy=section != GROUPED[2]))
    same: dict[bytes, list[str]] = {}
    for line in lines:
        same.setdefault(line.values.tobytes(), []).append(line.label.split(" = ")[0])
    alike = [f"on one curve: {listed(names, 4)}" for names in same.values() if len(names) > 1 and all(names)]
    facts = [*(_ends(line) for line in lines if line.label == "overall"), *alike[:2]]
    hidden = sum(line.label == "" for line in lines)
    facts += [f"{hidden:,} more groups in grey"] if hidden else []
    zeros = section != GROUPED[2]  # a learning rate of 0 is part of a schedule and no fault
    frozen = [(line.label, int((line.values == 0).sum())) for line in lines if zeros and (line.values == 0).any()]
    facts += [f"{name or 'one in grey'} exactly 0 in {n:,}" for name, n in frozen[:2]]
    return Panel(title, y, lines, [*facts, *t.missing(section)], height=4.2, zeros=zeros, shared=True)


def _group_line(name: str, values: Floats, places: dict[str, int], noisy: bool) -> Line:
    if name == "overall":
        return Line(name, values, INK, width=2.2, noisy=noisy)
    place = places[name]
    if place >= STYLED:
        return Line("", values, "#BBBBBB", width=1.0, noisy=noisy)
    # dashes alternate, so that two groups with the same values can both be seen
    dash = DASHES[(place // len(COLOURS) + place % 2) % len(DASHES)]
    return Line(shorten(name, 48), values, COLOURS[place % len(COLOURS)], dash, noisy=noisy)


def holdout_panels(t: Telemetry, classes: int) -> list[Panel]:
    """Held-out accuracy and loss, each with the same number of the training if the loop logged it."""
    held, logged = t.sections.get(HOLDOUT, {}), t.sections.get(LOGGED, {})
    trained = [name for name in logged if is_accuracy(name)]
    # a held-out loss whose status says which one it is, is not known to be the one that is trained
    losses = [n for n in ("loss", "train_loss") if n in logged and not t.explained(HOLDOUT, "loss")]
    panels = []
    for name, beside in (("accuracy", trained), ("loss", losses)):
        if name not in held or not np.isfinite(held[name]).any():
            continue
        lines = [Line("held out", held[name], COLOURS[1])]
        for place, other in enumerate(beside):
            values = logged[other]
            if name == "accuracy" and np.nanmax(values, initial=0) > 1.5:
                values, other = values / 100, f"{other} ÷ 100"
            lines.append(Line(f"logged: {other}", values, [COLOURS[0], *COLOURS[2:]][place % 5]))
        panels.append(_holdout_panel(t, name, lines, classes if name == "accuracy" else 0))
    return panels + number_panels(t, HOLDOUT, without=("accuracy", "loss"))


def _holdout_panel(t: Telemetry, name: str, lines: list[Line], classes: int) -> Panel:
    def decorate(axes: Axes, small: bool) -> None:
        if classes > 1:
            chance = f"chance, 1 of {classes:,} classes"
            axes.axhline(1 / classes, color=QUIET, linestyle=":", linewidth=1.4, label=chance)
        if name == "accuracy":
            axes.set_ylim(-0.03, 1.03)
            axes.set_yticks([0, 0.5, 1] if small else [0, 0.2, 0.4, 0.6, 0.8, 1])

    facts = [_ends(lines[0], f"held-out {name}"), *t.explained(HOLDOUT, name), *t.missing(HOLDOUT, [name])]
    title = f"{name.capitalize()} on the held-out examples"
    return Panel(title, name, lines, facts, log=name == "loss", decorate=decorate)


def example_panel(examples: Examples) -> Panel:
    if examples.classes:
        title, bar, meaning = "Margin of the true class", "margin", "blue: right, red: wrong"
    else:
        title, bar, meaning = "Error of each held-out example", "error", "blue: above its target, red: below"
    height = min(max(0.09 * examples.values.shape[1], 2.6), 8.0)
    facts, cells = [meaning, *examples.facts], partial(paint_examples, examples)
    return Panel(title, "held-out example", facts=facts, height=height, cells=cells, bar=bar)


def batch_panels(t: Telemetry) -> list[Panel]:
    """The share of each class, or mean and standard deviation of the targets; the batch size where it changes."""
    stats, shares = t.sections.get(BATCH, {}), class_shares(t)
    facts = t.missing(BATCH, [key for key in stats if not key.endswith("_pct")])
    panels = []
    if shares:
        panels.append(_share_panel(t, shares))
    names = {"target_mean": "mean of the targets", "target_std": "standard deviation of the targets"}
    lines = [
        Line(names[k], v, COLOURS[i]) for i, (k, v) in enumerate(stats.items()) if k in names and np.isfinite(v).any()
    ]
    if lines:
        panels.append(Panel("Targets in the batches", "targets", lines))
    for key, values in stats.items():
        known = values[np.isfinite(values)]
        if key in names or key.endswith("_pct") or not len(known):
            continue
        if key == "batch_size" and panels and known.min() == known.max():
            facts.append(f"{num(float(known[0]))} examples in every batch")
            continue
        title, y = ("Size of the batches", "examples") if key == "batch_size" else (key.replace("_", " "), "")
        panels.append(Panel(title, y, [Line("", values, COLOURS[5])], height=2.0))
    return [replace(panels[0], facts=[*panels[0].facts, *facts]), *panels[1:]] if panels else []


def _share_panel(t: Telemetry, shares: dict[str, Floats]) -> Panel:
    title, values = "Classes in the batches", np.array(list(shares.values())).T
    if len(shares) > len(COLOURS):
        top = float(np.nanmax(values, initial=1.0))

        def cells(axes: Axes, small: bool) -> ScalarMappable:
            mesh = paint(axes, t.steps, values, "viridis", Normalize(0, top))
            every = -(-len(shares) // (5 if small else 20))
            axes.set_yticks(np.arange(len(shares))[::every] + 0.5, [shorten(n, 16) for n in list(shares)[::every]])
            return mesh

        height = min(max(0.2 * len(shares), 2.6), 6.0)
        return Panel(title, facts=[f"{len(shares):,} classes"], height=height, cells=cells, bar="% of batch")
    lines = [Line(name, share, COLOURS[i]) for i, (name, share) in enumerate(shares.items())]

    def decorate(axes: Axes, small: bool) -> None:
        axes.axhline(100 / len(shares), color=QUIET, linestyle=":", linewidth=1.4, label="balanced")
        axes.set_ylim(-3, 103)
        axes.set_yticks([0, 50, 100] if small else [0, 20, 40, 60, 80, 100])

    known = {name: share for name, share in shares.items() if np.isfinite(share).any()}
    means = ", ".join(f"{name} {num(float(np.nanmean(share)))} %" for name, share in known.items())
    return Panel(title, "% of the batch", lines, [f"on average {means}"], log=False, decorate=decorate)


def number_panels(t: Telemetry, section: str, without: Collection[str] = ()) -> list[Panel]:
    """One pair of axes for every number, since their scales differ."""
    panels = []
    for name, values in t.sections.get(section, {}).items():
        if np.isfinite(values).any() and name not in without:
            title, lines = shorten(f"{section}: {name}" if section else name, 36), [Line("", values, COLOURS[0])]
            panels.append(Panel(title, "", lines, t.missing(section, [name]), height=2.0))
    return panels


def _ends(line: Line, name: str = "") -> str:
    known = line.values[np.isfinite(line.values)]
    ends = " to ".join(num(float(value)) for value in (known[0], known[-1])[: len(known)])
    return f"{name or line.label} {ends}"
