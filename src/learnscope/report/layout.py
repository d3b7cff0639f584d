"""The layout of figures: a heading, margins from the sizes of labels, files on disk."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine
from matplotlib.text import Text
from numpy.typing import NDArray
from PIL import Image

from learnscope.store.files import write_atomically
from learnscope.store.reader import RunReader

T = TypeVar("T")

DPI = 150
WIDTH = 10.0
INK, QUIET = "#222222", "#666666"
PAD = 0.1
"""Free space at the edges of a figure, in inches."""
BAR = 0.22
"""Width of a colour bar, in inches."""
LINE = 1.35 / 72
"""Height of a line of text, in inches for each point of its size."""


@dataclass(frozen=True)
class Panel:
    """A kind of figure: its file, what it is, and how to read it."""

    file: str
    title: str
    reading: str
    draw: Callable[[RunReader], Figure | None]
    note: Callable[[RunReader], str] = field(default=lambda _: "")
    """What to say about the figure of this run."""


class Margins(LayoutEngine):
    """Margins from the labels of the axes, each measured once.

    Matplotlib's own engines measure everything several times and let a long heading shrink the axes. A figure here
    is a heading above one grid of axes, perhaps with a colour bar as its last column and a legend below.
    """

    _adjust_compatible = True
    _colorbar_gridspec = True

    def __init__(self) -> None:
        super().__init__()
        self.head = 0.0
        self.bar = False

    def set(self) -> None:
        """Required by matplotlib; there is nothing to set."""

    def execute(self, fig: Figure) -> None:
        if not fig.axes:
            return
        renderer = _canvas(fig).get_renderer()
        width, height = fig.get_size_inches()
        spec = fig.axes[0].get_subplotspec()
        assert spec is not None
        grid = spec.get_gridspec()
        rows, columns = grid.nrows, grid.ncols
        # inches by which labels extend beyond the axes: left and right by column, above and below by row
        left, right, top, bottom = (np.zeros(n) for n in (columns, columns, rows, rows))
        for axes in fig.axes:
            place = axes.get_subplotspec()
            assert place is not None
            beyond = _overhang(axes, renderer, fig.dpi)
            for extent, at, inches in zip(
                (left, right, top, bottom),
                (place.colspan.start, place.colspan.stop - 1, place.rowspan.start, place.rowspan.stop - 1),
                beyond,
                strict=True,
            ):
                extent[at] = max(extent[at], inches)
        below = sum(legend.get_window_extent(renderer).height / fig.dpi for legend in fig.legends)
        x0, x1 = PAD + left[0], width - PAD - right[-1]
        y0, y1 = PAD + below + bottom[-1], height - PAD - self.head - top[0]
        across = max((right[:-1] + left[1:]).max(initial=0) + 1.5 * PAD, 0)
        down = max((bottom[:-1] + top[1:]).max(initial=0) + PAD, 0)
        if self.bar:
            grid.set_width_ratios([max(x1 - x0 - across - BAR, BAR), BAR])
        fig.subplots_adjust(
            left=x0 / width, right=max(x1, x0 + 0.5) / width, bottom=y0 / height, top=max(y1, y0 + 0.3) / height,
            wspace=_share(across, x1 - x0, columns), hspace=_share(down, y1 - y0, rows),
        )  # fmt: skip
        # the heading starts at the left end of the axes, or further left if its lines are long
        longest = max((text.get_window_extent(renderer).width / fig.dpi for text in fig.texts), default=0.0)
        for text in fig.texts:
            text.set_x(max(PAD, min(x0, width - PAD - longest)) / width)


class PlainFigure(Figure):
    """A figure whose texts are shown as they are: a `$` in a name of a run is no formula.

    Tick labels and legends may be made only while drawing, by whoever saves the figure. Powers of ten are written in
    plain characters here (`style.plain`), so that no label needs formulas.
    """

    def draw(self, renderer: Any) -> None:
        for text in self.findobj(Text):
            text.set_parse_math(False)
        with rc_context({"text.parse_math": False}):
            super().draw(renderer)


def _canvas(figure: Figure) -> Any:
    """The canvas of `new_figure`; its methods have no types."""
    return figure.canvas


def _overhang(axes: Axes, renderer: RendererAgg, dpi: float) -> tuple[float, float, float, float]:
    """Inches by which ticks, labels and a title extend beyond the axes: left, right, top, bottom."""
    box = axes.get_window_extent(renderer)
    boxes = [
        axis.get_tightbbox(renderer, for_layout_only=True) for axis in (axes.xaxis, axes.yaxis) if axes.get_visible()
    ]
    visible = [b for b in boxes if b is not None and b.width > 0 and b.height > 0]
    left = max((box.x0 - b.x0 for b in visible), default=0.0)
    right = max((b.x1 - box.x1 for b in visible), default=0.0)
    bottom = max((box.y0 - b.y0 for b in visible), default=0.0)
    top = 1.6 * 10 / 72 if axes.get_title() or axes.get_title(loc="left") else 0.0
    if axes.get_title():  # centred above a narrow colour bar
        right = max(right, (axes.title.get_window_extent(renderer).width - box.width) / 2)
    return max(left, 0) / dpi, max(right, 0) / dpi, top, max(bottom, 0) / dpi


def _share(gap: float, total: float, n: int) -> float:
    """A gap in inches in matplotlib's unit: the mean width of `n` axes within `total`."""
    return gap / max((total - gap * (n - 1)) / n, 0.1)


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """A figure with its own canvas, without pyplot, so that the user's backend stays as it is."""
    figure = PlainFigure(figsize=(width, height), dpi=DPI, layout=Margins(), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def figure_with_bar(height: float, width: float = WIDTH) -> tuple[Figure, Axes, Axes]:
    figure = new_figure(height, width)
    margins(figure).bar = True
    axes, bar = figure.subplots(1, 2)
    return figure, axes, bar


def margins(figure: Figure) -> Margins:
    engine = figure.get_layout_engine()
    assert isinstance(engine, Margins)
    return engine


def head(figure: Figure, title: str, facts: str = "") -> None:
    """Title and facts at the top of the figure, the facts on as many lines as they need."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(facts, max(int((width - 1.2) * 13), 20))
    y = height - PAD
    figure.text(0, y / height, title, va="top", fontsize=14, fontweight="bold", color=INK)
    if lines:
        y -= 14 * LINE
        figure.text(0, y / height, "\n".join(lines), va="top", fontsize=10, color=QUIET, linespacing=1.2)
    margins(figure).head = 14 * LINE + len(lines) * 10 * LINE + 0.1


def save(figure: Figure, path: Path) -> None:
    """Draw once, straight to a file: `savefig` would draw twice, the first time only for the layout."""
    canvas = _canvas(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # nothing is transparent
    # stronger compression takes five times as long and saves a tenth of the size
    write_atomically(path, lambda temporary: image.save(temporary, format="PNG", compress_level=3, dpi=(DPI, DPI)))


def save_all(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as `<name>.png` into `folder`; returns the paths."""
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        save(figure, path)
    return paths


def panels_on(grid: NDArray[Any], items: Sequence[T]) -> Iterator[tuple[Axes, T, bool]]:
    """Axes for each item, row by row, and whether they are the lowest of their column; axes left over are hidden."""
    for place, axes in enumerate(grid.flat):
        if place < len(items):
            yield axes, items[place], place + grid.shape[1] >= len(items)
        else:
            axes.set_visible(False)
