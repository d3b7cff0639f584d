"""Whether what a figure says can be read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text


def texts(figure: Figure) -> Iterator[Text]:
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            # ticks beyond the ends of an axis are not drawn
            inside = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            yield from (label for tick in inside for label in (tick.label1, tick.label2))
            yield axis.label
        yield axes.title
        yield axes._left_title  # type: ignore[attr-defined]
        yield from axes.texts
        if axes.get_legend() is not None:
            yield from axes.get_legend().get_texts()  # type: ignore[union-attr]
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()


def assert_legible(figure: Figure) -> None:
    """No text lies upon another or beyond the edge, by what is drawn."""
    canvas: Any = figure.canvas
    canvas.draw()
    renderer = canvas.get_renderer()
    shown = [text for text in texts(figure) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    width, height = figure.get_size_inches() * figure.dpi
    for name, box in boxes:
        assert box.x0 >= 0, name
        assert box.y0 >= 0, name
        assert box.x1 <= width, name
        assert box.y1 <= height, name
    for (one, first), (other, second) in combinations(boxes, 2):
        apart = first.x1 <= second.x0 or second.x1 <= first.x0 or first.y1 <= second.y0 or second.y1 <= first.y0
        assert apart, f"{one!r} lies upon {other!r}"
