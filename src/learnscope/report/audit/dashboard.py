"""An audit on one page: its most important numbers, and its figures in small."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.findings.bits.bit_widths import MEASURES, recommended_configuration
from learnscope.findings.cost.deployment import audit_deployment
from learnscope.findings.registry import findings_of
from learnscope.findings.robustness.robustness import within
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.audit_numbers import Number
from learnscope.reading.audit_words import on, signed, size
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, num
from learnscope.report.audit.marks import LIMIT, message, tile, values, without_stem
from learnscope.report.bits.configurations import cost_over_bits
from learnscope.report.cost.speed import throughput
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET, head, new_figure
from learnscope.report.robustness.damage import accuracy_over_epsilon, damage_lines, families, over_strength
from learnscope.report.style import COLOURS, finish, plain
from learnscope.store.reader import RunReader

GOOD = "#1B7837"
VERDICTS = {"Suits": "yes", "Does": "no", "Not": "not judged", "Whether": "cannot be told"}
"""The first words of what is said of a scenario, in short."""


def dashboard_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    audit, cuts = read_audit(reader), cuts or Cuts()
    if not audit:
        return None
    figure = new_figure(9.8, 13.0)
    spec = figure.add_gridspec(4, 3, height_ratios=[0.5, 0.5, 1.7, 1.7])
    for place, put in enumerate((_quality, _speed, _memory, _bits, _gap)):
        put(figure.add_subplot(spec[place // 3, place % 3]), audit, cuts)
    _scenarios(figure.add_subplot(spec[1, 2]), reader, cuts)
    for place, (title, draw) in enumerate(PLOTS.items()):
        axes = figure.add_subplot(spec[2 + place // 3, place % 3])
        draw(axes, audit, cuts)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    ran = len(audit.__dict__) - 1 - len(audit.missing)
    lines = "dashed red: thresholds; bands: 95 % intervals; filled: on the Pareto frontier"
    head(figure, "Audit at a glance", f"{ran} of {ran + len(audit.missing)} parts ran; {lines}")
    return figure


def _short(number: Number) -> str:
    return "" if number.interval is None else f"95 % interval {num(number.interval[0])} to {num(number.interval[1])}"


def _why(audit: Audit, part: str) -> str:
    return shorten(audit.missing.get(part, "not recorded"), 46)


def _quality(axes: Axes, audit: Audit, cuts: Cuts) -> None:  # noqa: ARG001 (judged by no cut)
    part = audit.quality
    if part is None:
        tile(axes, "Quality", "n/a", _why(audit, "quality"), QUIET)
        return
    name, number = next(((n, v) for n, v in (("Perplexity", part.perplexity), ("Accuracy", part.accuracy))
                         if v.value is not None), ("Loss", part.loss))  # fmt: skip
    more = f"; accuracy {num(part.accuracy.value)}" if name != "Accuracy" and part.accuracy.value is not None else ""
    text = num(number.value) if number.value is not None else "n/a"
    tile(axes, f"{name}{on(part.n_examples)}", text, _short(number) + more if number.value is not None else
         f"{number.why}")  # fmt: skip


def _speed(axes: Axes, audit: Audit, cuts: Cuts) -> None:
    part = audit.speed
    if part is None or not part.settings:
        tile(axes, "Throughput", "n/a", _why(audit, "speed"), QUIET)
        return
    main = part.main
    rate, unit = main.rate
    if rate.value is None:
        tile(axes, "Throughput", "n/a", shorten(str(rate.why), 46), QUIET)
        return
    latency = "" if main.p50.value is None else f"; median {num(1e3 * main.p50.value)} ms"
    colour = GOOD if rate.value >= cuts.audit_tokens_per_second else LIMIT
    tile(axes, f"Throughput, {main.said}", f"{num(rate.value)} {unit}",
         f"{num(cuts.audit_tokens_per_second)} asked for{latency}", colour)  # fmt: skip


def _memory(axes: Axes, audit: Audit, cuts: Cuts) -> None:
    part = audit.memory
    if part is None or part.model_bytes.value is None:
        tile(axes, "Weights", "n/a", _why(audit, "memory"), QUIET)
        return
    run = part.run_bytes.value
    total = part.model_bytes.value + (run or 0.0)
    beside = f"{size(run)} more to run" if run is not None else "running not measured"
    colour = GOOD if run is not None and total <= cuts.audit_memory_bytes else LIMIT
    tile(axes, "Weights", size(part.model_bytes.value), f"{beside}; {size(cuts.audit_memory_bytes)} asked for",
         colour if run is not None or total > cuts.audit_memory_bytes else INK)  # fmt: skip


def _bits(axes: Axes, audit: Audit, cuts: Cuts) -> None:  # noqa: ARG001 (judged by no cut)
    one = recommended_configuration(audit)
    if one is None:
        tile(axes, "Recommended bit widths", "n/a", _why(audit, "optimum"), QUIET)
        return
    packed, bits, change = one["packed_bytes"].value, one["block_bits"].value, one["loss_change"]
    value = f"{num(bits)} bits" if bits is not None else one.name
    loss = "" if change.value is None else f"; loss {signed(change.value)}"
    if change.interval is not None:
        loss += f" ({signed(change.interval[0])} to {signed(change.interval[1])})"
    tile(axes, f"Recommended: {shorten(one.name, 24)}, in blocks", value,
         f"{size(packed) if packed is not None else 'size n/a'}{loss}")  # fmt: skip


def _gap(axes: Axes, audit: Audit, cuts: Cuts) -> None:
    part = audit.attacks
    if part is None or part.gap.value is None:
        why = _why(audit, "attacks") if part is None else shorten(str(part.gap.why), 46)
        tile(axes, "Robustness gap", "n/a", why, QUIET)
        return
    colour = {True: GOOD, False: LIMIT, None: INK}[within(part.gap, cuts.audit_robustness_gap)]
    tile(axes, f"Robustness gap{on(part.examples)}", num(part.gap.value),
         f"{_short(part.gap)}; at most {num(cuts.audit_robustness_gap)} asked for", colour)  # fmt: skip


def _scenarios(axes: Axes, reader: RunReader, cuts: Cuts) -> None:
    lines = []
    for finding in findings_of(audit_deployment, reader, cuts):
        name = finding.kind.removeprefix("audit_suits_").replace("_", " ")
        lines.append(f"{capital(name)}: {VERDICTS.get(finding.title.split()[0], '?')}")
    tile(axes, "Suits", "")
    axes.text(0, 0.7, "\n".join(lines), fontsize=12, fontweight="bold", color=INK, va="top", linespacing=1.25,
              transform=axes.transAxes)  # fmt: skip


def _plot_speed(axes: Axes, audit: Audit, cuts: Cuts) -> None:
    if audit.speed is None or not any(one.rate[0].value is not None for one in audit.speed.settings):
        message(axes, _why(audit, "speed"))
        return
    shown = [one for one in audit.speed.settings if one.rate[0].value is not None][:8]
    throughput(axes, shown, cuts)
    axes.set_yticks(range(len(shown)), [f"{one.phase} ×{one.batch}" for one in shown])


def _plot_bits(axes: Axes, audit: Audit, cuts: Cuts) -> None:
    part = audit.configurations or audit.optimum
    if part is None or not any((one[part.judged_by].value or 0) > 0 for one in part.items):
        message(axes, _why(audit, "configurations"))
        return
    cost_over_bits(axes, part, cuts, "model_bits", numbers=False)
    finish(axes, "bits a weight, whole model", MEASURES[part.judged_by], size=10)


def _plot_units(axes: Axes, audit: Audit, cuts: Cuts) -> None:  # noqa: ARG001 (judged by no cut)
    """The units that mind most, at the fewest bits that were tried."""
    part = audit.sensitivity
    known = [] if part is None or not part.bits else [
        (unit.name, unit.cost[part.bits[-1]].value) for unit in part.units if part.bits[-1] in unit.cost]  # fmt: skip
    ranked = sorted([(n, v) for n, v in known if v is not None], key=lambda item: -item[1])[:8]
    if part is None or not ranked:
        message(axes, _why(audit, "sensitivity"))
        return
    axes.barh(np.arange(len(ranked)), [v for _, v in ranked], 0.65, color=COLOURS[2], alpha=0.8)
    axes.set_yticks(np.arange(len(ranked)), [shorten(n, 16) for n in without_stem([n for n, _ in ranked])])
    axes.set_ylim(max(len(ranked), 4) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter(lambda value, _: "0" if value <= 0 else plain(float(f"{value:.3g}")))
    finish(axes, f"{MEASURES[part.judged_by]} alone at {part.bits[-1]} bits", size=10)


def _plot_attacks(axes: Axes, audit: Audit, cuts: Cuts) -> None:  # noqa: ARG001 (judged by no cut)
    curves = [] if audit.attacks is None else families(audit.attacks)
    if audit.attacks is None or not curves:
        message(axes, _why(audit, "attacks"))
        return
    accuracy_over_epsilon(axes, curves[0], audit.attacks.clean)
    axes.legend(fontsize=8, framealpha=0.8, edgecolor="none", loc="lower left")


def _plot_noise(axes: Axes, audit: Audit, cuts: Cuts) -> None:
    kinds = {} if audit.noise is None else audit.noise.by_name()
    name = "weight_noise" if "weight_noise" in kinds else next(iter(kinds), "")
    if not name or not np.isfinite(values([one.kl for one in kinds[name]])).any():
        message(axes, _why(audit, "noise"))
        return
    over_strength(axes, name, kinds[name], "kl", cuts.audit_kl)
    finish(axes, "σ of the weights" if name == "weight_noise" else name.replace("_", " "), "mean KL, nats", size=10)


def _plot_damage(axes: Axes, audit: Audit, cuts: Cuts) -> None:  # noqa: ARG001 (judged by no cut)
    part = audit.perturbations
    levels = [] if part is None else [one for one in part.levels if one.name != "clean"]
    measure = "accuracy" if any(one.accuracy.value is not None for one in levels) else "loss"
    if part is None or not any(getattr(one, measure).value is not None for one in levels):
        message(axes, _why(audit, "perturbations"))
        return
    damage_lines(axes, part, measure)
    finish(axes, "share of the inputs damaged", measure, size=10)
    axes.legend(fontsize=8, framealpha=0.8, edgecolor="none", loc="lower left" if measure == "accuracy" else "best")


PLOTS: dict[str, Callable[[Axes, Audit, Cuts], None]] = {
    "Throughput": _plot_speed, "Cost of bits": _plot_bits, "Most sensitive units": _plot_units,
    "Attacks": _plot_attacks, "Noise on the weights": _plot_noise, "Damaged inputs": _plot_damage,
}  # fmt: skip
