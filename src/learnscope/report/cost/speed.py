"""How long an audited model takes, and where; how much memory it takes, and for what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.findings.bits.bit_widths import recommended_configuration
from learnscope.findings.outputs.finished.performance import PARTS
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import size
from learnscope.reading.cost.audit_cost import Layers, Setting, Speed
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, num
from learnscope.report.audit import marks
from learnscope.report.audit.marks import absent, limit, log_axis, log_span, name_rows, values, without_stem
from learnscope.report.heatmap import layer_names, shorten
from learnscope.report.layout import INK, QUIET, head, new_figure
from learnscope.report.style import COLOURS, finish, guides, plain
from learnscope.store.reader import RunReader

GRID = ("prefill", "decode")
PHASES = {"forward": COLOURS[0], "prefill": COLOURS[2], "decode": COLOURS[1]}


def speed_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    audit, cuts = read_audit(reader), cuts or Cuts()
    settings = [] if audit.speed is None else audit.speed.settings
    timed = audit.speed if any(setting.mean.value is not None for setting in settings) else None
    times = [] if audit.layers is None else [*audit.layers.layers.values(), *audit.layers.modules.values()]
    profiled = audit.layers if any(n.value is not None for n in times) else None
    if timed is None and profiled is None:
        return None
    swept = {phase: [s for s in settings if s.phase == phase and s.rate[0].value is not None] for phase in GRID}
    gridded = timed is not None and any(len({s.batch for s in each}) > 1 for each in swept.values())
    heights = ([max(0.34 * len(settings), 1.2)] if timed else []) + [2.0] * gridded + ([2.0] if profiled else [])
    figure = new_figure(sum(heights) + 1.1 + 0.75 * len(heights))
    spec = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    facts = []
    if timed is not None:
        _latency(figure.add_subplot(spec[0, 0]), settings)
        throughput(figure.add_subplot(spec[0, 1]), settings, cuts, names=False)
        facts += _speed_facts(timed)
    for place, phase in enumerate(GRID if gridded else ()):
        _over_batches(figure.add_subplot(spec[1, place]), phase, swept[phase])
    if profiled is not None:
        _profile(figure.add_subplot(spec[-1, :]), profiled)
        total = profiled.total.value
        facts += [f"layers: one pass in all takes {num(1e3 * total)} ms"] if total else []
    marks.legend_below(figure, 5)
    head(figure, "Speed", "; ".join(facts))
    return figure


def _over_batches(axes: Axes, phase: str, settings: Sequence[Setting]) -> None:
    """Tokens a second over the examples of a batch, a line for each length of text."""
    for place, length in enumerate(sorted({setting.length for setting in settings})):
        line = sorted((s.batch, s.rate[0].value or 0.0) for s in settings if s.length == length)
        mark = ("o", "s", "^", "D")[place % 4]
        axes.plot([n for n, _ in line], [rate for _, rate in line], marker=mark, color=PHASES[phase], ms=6, lw=1.4,
                  mfc="white" if place % 2 else PHASES[phase])  # fmt: skip
        axes.plot([], [], mark, color=INK, mfc="white" if place % 2 else INK, ms=6, ls="", label=f"{length} tokens")
    span = log_span([setting.rate[0].value or 0.0 for setting in settings])
    if span is not None:
        log_axis(axes, *span, most=5)
        sizes = sorted({setting.batch for setting in settings})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{n}" for n in sizes])
        axes.set_xlim(min(sizes) / 1.3, max(sizes) * 1.3)
    guides(axes, "both")
    finish(axes, f"examples in a batch, {phase}", "tokens a second", size=10)


def _speed_facts(part: Speed) -> list[str]:
    threads = part.notes.get("threads")
    facts = [f"{part.notes.get('device', 'device not recorded')}" + (f", {threads} threads" if threads else "")]
    ns = [setting.n for setting in part.settings if setting.n is not None]
    if ns:
        passes = count(ns[0], "pass", "passes") if len(set(ns)) == 1 else f"{min(ns):,} to {max(ns):,} passes"
        few = {"P95": sum(n < 59 for n in ns), "P99": sum(n < 299 for n in ns)}
        short = [f"{name} of {missing:,} of {len(ns):,}" for name, missing in few.items() if missing]
        facts += [f"{passes} each"] + ([f"too few for {' and '.join(short)}"] if short else [])
    return facts + (["still moving after the warm-up"] if part.notes.get("warm") is False else [])


def _names(settings: Sequence[Setting]) -> list[str]:
    return [f"{setting.description}{' (main)' if setting.main and len(settings) > 1 else ''}" for setting in settings]


def _latency(axes: Axes, settings: Sequence[Setting]) -> None:
    """Milliseconds: median, mean and percentiles, a row for each setting."""
    rows = range(len(settings))
    median, mean, p95, p99 = (
        1e3 * values([getattr(setting, name) for setting in settings]) for name in ("p50", "mean", "p95", "p99")
    )
    for row in np.flatnonzero(np.isfinite(median)).tolist():
        axes.plot(median[row], row, "o", color=PHASES.get(settings[row].phase, COLOURS[5]), ms=9)
    if np.isfinite(median).any():
        axes.plot([], [], "o", color=COLOURS[5], ms=9, label="median", ls="")
    marked = (("mean", mean, "D", 5, 0.0), ("P95", p95, "|", 12, 1.8), ("P99", p99, "x", 5, 1.8))
    for label, times, mark, points, width in marked:
        if np.isfinite(times).any():
            axes.plot(times, rows, mark, color=INK, ms=points, mew=width, label=label, ls="")
    absent(axes, [setting.p50 for setting in settings])
    span = log_span([*median, *p95, *p99, *mean])
    if span is not None:
        log_axis(axes, span[0] / 1.1, span[1] * 1.1, x=True, most=5)
    _rows(axes, "latency of a pass, ms", _names(settings))


def _rows(axes: Axes, x: str, names: Sequence[str]) -> None:
    guides(axes, "both")
    finish(axes, x, size=10)
    name_rows(axes, names, 36)


def throughput(axes: Axes, settings: Sequence[Setting], cuts: Cuts, *, names: bool = True) -> None:
    """Tokens a second and the threshold, a row for each setting."""
    rates = [setting.rate for setting in settings]
    span = log_span(values([n for n, _ in rates]), cuts.audit_tokens_per_second)
    assert span is not None  # the threshold is above 0
    limit(axes, cuts.audit_tokens_per_second, f"asked for: {num(cuts.audit_tokens_per_second)}/s")
    marks.dots(axes, [n for n, _ in rates], [PHASES.get(s.phase, COLOURS[5]) for s in settings], [True] * len(rates))
    for row, (number, _) in enumerate(rates):
        if number.value is not None:
            axes.annotate(num(number.value), (number.value, row), (8, 0), textcoords="offset points", va="center",
                          fontsize=9, color=INK, bbox=marks.BEHIND)  # fmt: skip
    absent(axes, [n for n, _ in rates])
    unit = "examples" if all(unit == "examples/s" for _, unit in rates) else "tokens"
    log_axis(axes, span[0] / 1.1, span[1] * (span[1] / span[0]) ** 0.2, x=True, most=5)
    _rows(axes, f"{unit} a second", _names(settings) if names else [""] * len(settings))


def _profile(axes: Axes, part: Layers) -> None:
    """Layers in the model's order; of a model with one layer or none, the modules that take most themselves."""
    times = {name: n.value for name, n in part.layers.items() if n.value is not None}
    what = "layer"
    if len(times) < 2:
        own = {name: n.value for name, n in part.modules.items() if n.value is not None}
        times, what = dict(sorted(own.items(), key=lambda item: -item[1])[:8]), "module, what is inside it apart"
    places = np.arange(len(times))
    axes.bar(places, [1e3 * s for s in times.values()], 0.75, color=COLOURS[4])
    names, common = layer_names(without_stem(list(times)), {})
    shown = [shorten(name, max(110 // len(names), 12)) for name in names]
    every = max(1, int(np.ceil((max(len(name) for name in shown) + 1.5) * len(shown) / 125)))
    axes.set_xticks(places[::every], shown[::every])
    axes.set_xlim(-0.6, max(len(times), 6) - 0.4)
    guides(axes, "y")
    axes.locator_params(axis="y", nbins=5)
    finish(axes, f"{what}{f' of {common}' if common else ''}", "ms in a pass", size=10)


def memory_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    audit, cuts = read_audit(reader), cuts or Cuts()
    part = audit.memory
    if part is None or part.model_bytes.value is None:
        return None
    parts = [(name, n.value) for name, n in part.parts.items() if n.value is not None and n.value > 0]
    figure = new_figure(1.9 + max(0.36 * max(len(parts), 4), 1.4))
    left, right = figure.subplots(1, 2)
    total = sum(n for _, n in parts)
    _sizes(left, [(PARTS.get(name, name), n, f"{size(n)}, {100 * n / total:.2g} %") for name, n in parts])
    left.set_title("Weights, by what they are for", loc="left", fontsize=10, color=INK)
    weights, one, best = part.model_bytes.value, part.alone, recommended_configuration(audit)
    needs = {"weights": weights}
    if one is not None and one.activations.value is not None:
        cache, activations = one.cache.value or 0.0, one.activations.value
        needs |= ({"cache": cache} if cache else {}) | {"activations": activations}
        needs["all of it"] = weights + cache + activations
    if best is not None and (packed := best["packed_bytes"].value) is not None:
        needs[f"weights as {shorten(best.name, 18)}"] = packed
    _sizes(right, [(name, n, size(n)) for name, n in needs.items()], cuts.audit_memory_bytes)
    at = "" if len(needs) == 1 or one is None else f", {one.where}"
    right.set_title(f"What it takes{at}", loc="left", fontsize=10, color=INK)
    figure.legend(handles=right.get_legend_handles_labels()[0], loc="lower center", fontsize=10, frameon=False)
    facts = [f"{part.parameters.value:,.0f} parameters" if part.parameters.value is not None else ""]
    if part.peak_bytes.value is not None:
        which = {"fresh": "a process of its own", "own": "this process"}.get(part.process or "", "the process")
        facts.append(f"peak of {which}, libraries included: {size(part.peak_bytes.value)}")
    if one is None or one.activations.value is None:
        why = "not recorded for batch 1" if one is None else one.activations.reason
        facts.append(f"cache and activations were not measured: {why}")
    head(figure, "Memory", "; ".join(fact for fact in facts if fact))
    return figure


def _sizes(axes: Axes, rows: list[tuple[str, float, str]], most: float | None = None) -> None:
    largest = max([n for _, n, _ in rows] + ([most] if most else []), default=1.0)
    unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if largest >= s), ("bytes", 1.0))
    for row, (_, n, text) in enumerate(rows):
        axes.barh(row, n / scale, 0.62, color=COLOURS[0], alpha=0.75)
        axes.annotate(text, (n / scale, row), (4, 0), textcoords="offset points", va="center", fontsize=9, color=QUIET)
    if most:
        limit(axes, most / scale, f"at most {size(most)} asked for")
    finish(axes, unit, size=10)
    axes.set_xlim(0, 1.45 * largest / scale)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: "0" if value == 0 else plain(value))
    name_rows(axes, [name for name, _, _ in rows], 30)
