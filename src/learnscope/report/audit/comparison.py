"""Audits of several models side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.findings.bits.bit_widths import recommended_configuration
from learnscope.reading.audit_reading import read_audit
from learnscope.reading.audit_tables import NONE, Audit, Number
from learnscope.reading.audit_words import size
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import one_pass
from learnscope.reading.words import capital, count, listed, num
from learnscope.report.audit.marks import absent, dots, ends, limit, log_axis, log_span, name_rows
from learnscope.report.layout import INK, head, new_figure, save
from learnscope.report.markdown import escape, table
from learnscope.report.style import COLOURS, finish
from learnscope.store.files import write_text
from learnscope.store.reader import RunReader


@dataclass(frozen=True)
class Metric:
    """A number that models are compared by, and whether more of it is better."""

    name: str
    part: str
    get: Callable[[Audit], Number]
    write: Callable[[float], str]
    more_is_better: bool
    cut: str = ""
    unit: str = ""
    scale: float = 1.0
    exact: bool = False
    """Whether it is counted, not measured: it then needs no interval to be told from another."""


def _of_main(audit: Audit) -> Number:
    return audit.speed.main.rate[0] if audit.speed is not None and audit.speed.settings else NONE


def _packed(audit: Audit) -> Number:
    best = recommended_configuration(audit)
    return NONE if best is None else best["packed_bytes"]


METRICS = (
    Metric("loss", "quality", lambda a: a.quality.loss if a.quality else NONE, num, False),
    Metric("perplexity", "quality", lambda a: a.quality.perplexity if a.quality else NONE, num, False),
    Metric("accuracy", "quality", lambda a: a.quality.accuracy if a.quality else NONE, num, True),
    Metric("throughput", "speed", _of_main, num, True, "audit_tokens_per_second", "a second"),
    Metric("weights", "memory", lambda a: a.memory.model_bytes if a.memory else NONE, size, False,
           "audit_memory_bytes", "MB", 1e6, exact=True),
    Metric("recommended size", "optimum", _packed, size, False, "audit_memory_bytes", "MB", 1e6, exact=True),
    Metric("robustness gap", "attacks", lambda a: a.attacks.gap if a.attacks else NONE, num, False,
           "audit_robustness_gap"),
)  # fmt: skip


def write_comparison(
    runs: Mapping[str, RunReader], folder: str | Path, *, cuts: Cuts | None = None
) -> list[Path]:  # fmt: skip
    """Write comparison.md and comparison.png; their paths. A number that a model lacks has its reason below."""
    if not runs:
        raise ValueError("there is no run to compare: give at least one, {name: reader}")
    cuts, target = cuts or Cuts(), Path(folder)
    audits = {str(name): read_audit(one_pass(reader)) for name, reader in runs.items()}
    target.mkdir(parents=True, exist_ok=True)
    figure, plot = comparison_figure(audits, cuts), target / "comparison.png"
    if figure is None:
        plot.unlink(missing_ok=True)
    else:
        save(figure, plot)
    path = target / "comparison.md"
    write_text(path, _text(audits, figure is not None))
    return [path, plot] if figure is not None else [path]


def _text(audits: Mapping[str, Audit], drawn: bool) -> str:
    parts = ["# Models side by side", table(("metric", *map(escape, audits)), [_line(m, audits) for m in METRICS])]
    parts.append("Intervals of 95 % are in brackets; the best number of a row has a star where no other's interval "
                 "reaches it.")  # fmt: skip
    parts += [escape(note) for note in notes(audits)]
    if drawn:
        parts.append("![Models side by side](comparison.png)")
    missing = [(name, part, why) for name, audit in audits.items() for part, why in audit.missing.items()]
    if missing:
        parts += ["## Not run", table(("model", "part", "why"), missing)]
    return "\n\n".join(parts) + "\n"


def _line(metric: Metric, audits: Mapping[str, Audit]) -> list[str]:
    numbers = {name: metric.get(audit) for name, audit in audits.items()}
    best = clear_best(numbers, metric)
    return [metric.name, *[_cell(number, metric) + (" ★" if name == best else "") for name, number in numbers.items()]]


def _cell(number: Number, metric: Metric) -> str:
    if number.value is None:
        return "n/a" if number.why in (None, "not recorded") else f"n/a ({number.why})"
    if number.interval is None:
        return metric.write(number.value)
    return f"{metric.write(number.value)} ({metric.write(number.interval[0])} to {metric.write(number.interval[1])})"


def clear_best(numbers: Mapping[str, Number], metric: Metric) -> str | None:
    """The model that is best beyond all intervals; None if there is no such, or if it cannot be told."""
    known = {name: n for name, n in numbers.items() if n.value is not None}
    if len(known) < 2 or not (metric.exact or all(n.interval is not None for n in known.values())):
        return None
    sign = 1 if metric.more_is_better else -1
    best = max(known, key=lambda name: sign * (known[name].value or 0.0))
    low, high = ends(list(known.values()))
    near = dict(zip(known, low if sign > 0 else high, strict=True))[best]
    far = [value for name, value in zip(known, high if sign > 0 else low, strict=True) if name != best]
    return best if all(sign * (near - value) > 0 for value in far) else None


def notes(audits: Mapping[str, Audit]) -> list[str]:
    """Why numbers may not be comparable."""
    out = []
    examples = {name: a.quality.n_examples for name, a in audits.items() if a.quality is not None}
    if len(set(examples.values())) > 1:
        said = [f"{name} on {count(n, 'example') if n is not None else 'n/a'}" for name, n in examples.items()]
        out.append(f"Quality was measured on different data: {listed(said, len(said))}.")
    settings = {name: a.speed.main.said for name, a in audits.items() if a.speed is not None and a.speed.settings}
    threads = {name: a.speed.notes.get("threads") for name, a in audits.items() if a.speed is not None}
    if len(set(settings.values())) > 1 or len(set(threads.values())) > 1:
        said = [f"{name} at {where}, {threads[name]} threads" for name, where in settings.items()]
        out.append(f"Speed was measured in different settings: {listed(said, len(said))}.")
    return out


def comparison_figure(audits: Mapping[str, Audit], cuts: Cuts) -> Figure | None:
    """A panel for every metric that any model has, a row for every model."""
    shown = [m for m in METRICS if any(m.get(audit).value is not None for audit in audits.values())]
    if not shown:
        return None
    across = min(len(shown), 3)
    down = -(-len(shown) // across)
    figure = new_figure(1.0 + down * (0.95 + max(0.3 * len(audits), 0.9)), 12.0)
    grid = figure.subplots(down, across, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(shown):
            axes.set(xticks=[], yticks=[])
            axes.set_visible(False)
            continue
        _panel(axes, shown[place], audits, cuts)
        name_rows(axes, list(audits) if place % across == 0 else [""] * len(audits), 24)
    head(figure, "Models side by side", f"{count(len(audits), 'model')}; bars: 95 % intervals; dashed: thresholds")
    return figure


def _panel(axes: Axes, metric: Metric, audits: Mapping[str, Audit], cuts: Cuts) -> None:
    numbers = [_scaled(metric.get(audit), metric.scale) for audit in audits.values()]
    dots(axes, numbers, _colours(len(numbers)), [True] * len(numbers))
    absent(axes, numbers)
    most = getattr(cuts, metric.cut) / metric.scale if metric.cut else None
    if most is not None:
        limit(axes, most, metric.cut)
    low, high = ends(numbers)
    every = [*low[np.isfinite(low)], *high[np.isfinite(high)], *([most] if most is not None else [])]
    span = log_span(every)
    if span is not None and min(every) > 0 and max(every) > 20 * min(every):
        log_axis(axes, *span, x=True, most=5)
    else:
        axes.margins(x=0.15)
        axes.locator_params(axis="x", nbins=4)
    axes.grid(color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    finish(axes, metric.unit, size=10)
    better = "more is better" if metric.more_is_better else "less is better"
    axes.set_title(f"{capital(metric.name)} ({better})", loc="left", fontsize=10, color=INK)


def _scaled(number: Number, scale: float) -> Number:
    def part(value: float | None) -> float | None:
        return None if value is None else value / scale

    return Number(part(number.value), part(number.low), part(number.high), number.why)


def _colours(n: int) -> Sequence[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(n)]
