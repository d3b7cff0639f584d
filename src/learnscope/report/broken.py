"""The steps at which something in the run was NaN or infinite, marked alike in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from learnscope.findings.gradients.not_finite_where import Source, sources
from learnscope.reading.gather import one_pass
from learnscope.report.spans import not_finite
from learnscope.report.style import BROKEN
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Breaks:
    """Spans of steps, and what was not finite in them. A span that lasts to the end of the run ends at infinity."""

    spans: Sequence[tuple[float, float]] = ()
    what: Sequence[str] = ()

    @property
    def label(self) -> str:
        return f"not finite: {', '.join(self.what)}"

    def shade(self, axes: Axes, label: bool = True) -> None:
        """Shade the spans that the axes show, without changing what they show."""
        self._cover(axes, 0.0, 1.0, alpha=0.25, label=label)

    def edge(self, axes: Axes) -> None:
        """A band along the upper edge, for axes that are filled with colours of their own."""
        figure = axes.get_figure()
        assert isinstance(figure, Figure)
        inches_high = float(axes.get_position().height * figure.get_size_inches()[1])
        self._cover(axes, 1.0, 1.0 + 0.06 / inches_high, alpha=1.0)

    def _cover(self, axes: Axes, low: float, high: float, alpha: float, label: bool = True) -> None:
        x0, x1 = axes.get_xlim()
        shown = [(max(a, x0), min(b, x1)) for a, b in self.spans if a < x1 and b > x0]
        if not shown:
            return
        corners = [[(a, low), (b, low), (b, high), (a, high)] for a, b in shown]
        # a line around it keeps a single step visible among thousands
        axes.add_collection(
            PolyCollection(
                corners, facecolors=BROKEN, edgecolors=BROKEN, linewidths=0.6, alpha=alpha, zorder=0.9,
                transform=axes.get_xaxis_transform(), clip_on=high <= 1, label=self.label if label else None,
            ),
            autolim=False,
        )  # fmt: skip
        axes.set_xlim(x0, x1)


def breaks(reader: RunReader) -> Breaks:
    """Everything that was not finite; computed once for all the figures of a report."""
    run = one_pass(reader)
    return run.remember("breaks", lambda: Breaks(*not_finite(run)))


def weights(reader: RunReader) -> Source:
    """The source that tells when the weights were not finite."""
    return next(source for source in sources(reader) if source.what == "parameters")


def patch(breaks: Breaks, alpha: float = 1.0) -> Patch:
    return Patch(color=BROKEN, alpha=alpha, label=breaks.label)
