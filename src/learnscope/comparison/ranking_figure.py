"""The frontier of several models as a figure: bytes across, perplexity or loss up, a colour for each model."""

from __future__ import annotations

from matplotlib.figure import Figure

from learnscope.comparison.ranking import LOSS, PERPLEXITY, Ranking
from learnscope.reading.words import capital, count
from learnscope.report.audit.marks import log_axis, log_span
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET, head, new_figure
from learnscope.report.style import COLOURS, finish, guides

FAR = 4.0
"""Times the best perplexity beyond which points would press all others together; they are counted instead."""


def ranking_figure(ranking: Ranking) -> Figure | None:
    if not ranking.points:
        return None
    figure = new_figure(5.6, 9.0)
    axes = figure.subplots()
    best, smallest = ranking.best, ranking.smallest()
    values = {id(point): ranking.shown(ranking.loss(point)) for point in ranking.points}
    near = [p for p in ranking.points if values[id(p)] <= FAR * values[id(best)]]
    models = list(dict.fromkeys(point.model for point in ranking.points))
    frontier = [point for point in ranking.frontier if point in near]
    axes.step([p.bytes / 1e6 for p in frontier], [values[id(p)] for p in frontier], where="post", color=QUIET, lw=1.2,
              label="nothing measured is as small and as good")  # fmt: skip
    for place, name in enumerate(models):
        colour = COLOURS[place % len(COLOURS)]
        for number, point in enumerate(p for p in near if p.model == name):
            quality = ranking.quality(point)
            if quality.interval is not None:
                axes.plot([point.bytes / 1e6] * 2, quality.interval, color=colour, lw=1, alpha=0.35)
            axes.plot(point.bytes / 1e6, values[id(point)], "*" if point is smallest else "o", color=colour,
                      ms=15 if point is smallest else 6, mfc=colour if point in frontier else "white",
                      label=shorten(name, 40) if number == 0 else None)  # fmt: skip
    limit = values[id(best)] * (1 + ranking.allowed) if ranking.measure != LOSS else None
    if limit is not None:
        axes.axhline(limit, color=INK, lw=0.8, ls=":", label=f"{100 * ranking.allowed:g} % above the best")
    if (span := log_span([p.bytes / 1e6 for p in near])) is not None:
        log_axis(axes, *span, x=True, most=8)
    if (span := log_span([values[id(p)] for p in near])) is not None and ranking.measure != LOSS:
        log_axis(axes, *span)
    guides(axes, "both")
    finish(axes, "MB when packed", ranking.measure)
    axes.legend(fontsize=9, framealpha=0.8, edgecolor="none")
    unit = {LOSS: "answers", PERPLEXITY: "tokens"}.get(ranking.measure, "bytes")
    texts = f"{count(len(ranking.weights), 'text')}, {ranking.weights.sum():,.0f} {unit}"
    said = f"{texts}; star: the smallest within the loss"
    far = len(ranking.points) - len(near)
    said += f"; {count(far, 'point')} above {FAR:g} times the best not drawn" if far else ""
    head(figure, f"{capital(ranking.measure)} against size, all models", said)
    return figure
