"""An audit on one page: its most important numbers, and small versions of its figures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.findings import findings_of
from learnscope.findings.bits.bit_widths import recommended_configuration
from learnscope.findings.bits.frontier import MEASURES
from learnscope.findings.cost.deployment import audit_deployment
from learnscope.findings.robustness.robustness import within
from learnscope.reading.audit import PARTS, Audit, read_audit
from learnscope.reading.audit_numbers import NONE, Number, ends_text, signed, size
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, num
from learnscope.report.audit.marks import LIMIT, message, tile, values, without_stem
from learnscope.report.audit.verdict import VERDICTS
from learnscope.report.bits.configurations import bits_axis, cost_over_bits
from learnscope.report.cost.speed import throughput
from learnscope.report.heatmap import shorten
from learnscope.report.layout import INK, QUIET, head, new_figure
from learnscope.report.robustness.damage import accuracy_over_epsilon, damage_lines, families, over_strength
from learnscope.report.style import COLOURS, finish, plain
from learnscope.store.reader import RunReader

GOOD = "#1B7837"
Tile = tuple[str, str, str, str]
"""Label, value, more facts, colour."""


def dashboard_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    audit, cuts = read_audit(reader), cuts or Cuts()
    if not audit:
        return None
    figure = new_figure(9.8, 13.0)
    spec = figure.add_gridspec(4, 3, height_ratios=[0.5, 0.5, 1.7, 1.7])
    for place, make in enumerate((_quality, _speed, _memory, _bits, _gap)):
        tile(figure.add_subplot(spec[place // 3, place % 3]), *make(audit, cuts))
    scenarios = figure.add_subplot(spec[1, 2])
    tile(scenarios, "Suits", "")
    lines = [
        f"{capital(finding.kind.removeprefix('audit_suits_').replace('_', ' '))}: "
        f"{VERDICTS.get(finding.title.split()[0], '?')}"
        for finding in findings_of(audit_deployment, reader, cuts)
    ]
    scenarios.text(0, 0.7, "\n".join(lines), fontsize=12, fontweight="bold", color=INK, va="top", linespacing=1.25,
                   transform=scenarios.transAxes)  # fmt: skip
    for place, (title, (part, draw)) in enumerate(PLOTS.items()):
        axes = figure.add_subplot(spec[2 + place // 3, place % 3])
        if not draw(axes, audit, cuts):
            message(axes, _why(audit, part))
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    ran = len(PARTS) - len(audit.missing)
    marks = "dashed red: thresholds; bands: 95 % intervals; filled: on the Pareto frontier"
    head(figure, "Audit at a glance", f"{ran} of {len(PARTS)} parts ran; {marks}")
    return figure


def _short(number: Number) -> str:
    return f"95 % interval {ends_text(number)}" if number.interval is not None else shorten(ends_text(number), 40)


def _why(audit: Audit, part: str, number: Number | None = None) -> str:
    return shorten(str(number.reason) if number is not None else audit.missing.get(part, "not recorded"), 46)


def _quality(audit: Audit, cuts: Cuts) -> Tile:  # noqa: ARG001 (judged by no cut)
    part = audit.quality
    if part is None:
        return "Quality", "n/a", _why(audit, "quality"), QUIET
    name, number = next(((n, v) for n, v in (("Perplexity", part.perplexity), ("Accuracy", part.accuracy))
                         if v.value is not None), ("Loss", part.loss))  # fmt: skip
    label = f"{name}{part.on}"
    if number.value is None:
        return label, "n/a", f"{number.reason}", INK
    more = f"; accuracy {num(part.accuracy.value)}" if name != "Accuracy" and part.accuracy.value is not None else ""
    return label, num(number.value), _short(number) + more, INK


def _speed(audit: Audit, cuts: Cuts) -> Tile:
    part = audit.speed
    if part is None or not part.settings:
        return "Throughput", "n/a", _why(audit, "speed"), QUIET
    main = part.alone or part.main
    rate, unit = main.rate
    if rate.value is None:
        return "Throughput", "n/a", _why(audit, "speed", rate), QUIET
    latency = "" if main.p50.value is None else f"; median {num(1e3 * main.p50.value)} ms"
    asked = f"{num(cuts.audit_tokens_per_second)} asked for{latency}"
    colour = GOOD if rate.value >= cuts.audit_tokens_per_second else LIMIT
    return f"Throughput, {main.description}", f"{num(rate.value)} {unit}", asked, colour


def _memory(audit: Audit, cuts: Cuts) -> Tile:
    part = audit.memory
    if part is None or part.model_bytes.value is None:
        return "Weights", "n/a", _why(audit, "memory"), QUIET
    one = part.alone
    run = None if one is None or one.activations.value is None else (one.cache.value or 0.0) + one.activations.value
    beside = f"{size(run)} to run at batch 1" if one and run is not None else "running not measured"
    fits = part.model_bytes.value + (run or 0.0) <= cuts.audit_memory_bytes
    colour = LIMIT if not fits else GOOD if run is not None else INK
    return "Weights", size(part.model_bytes.value), f"{beside}; {size(cuts.audit_memory_bytes)} asked", colour


def _bits(audit: Audit, cuts: Cuts) -> Tile:  # noqa: ARG001 (judged by no cut)
    best = recommended_configuration(audit)
    if best is None:
        return "Recommended bit widths", "n/a", _why(audit, "optimum"), QUIET
    packed, bits, change = best["packed_bytes"].value, best["model_bits"].value, best["loss_change"]
    loss = "" if change.value is None else f"; loss {signed(change.value)}"
    if loss and (ends := ends_text(change, signed)):
        loss += f" ({shorten(ends, 32)})"
    label, value = f"Recommended: {shorten(best.name, 24)}", f"{num(bits)} bits a weight" if bits is not None else ""
    return label, value or best.name, f"{size(packed) if packed is not None else 'size n/a'}{loss}", INK


def _gap(audit: Audit, cuts: Cuts) -> Tile:
    part = audit.attacks
    if part is None or part.gap.value is None:
        return "Robustness gap", "n/a", _why(audit, "attacks", None if part is None else part.gap), QUIET
    colour = {True: GOOD, False: LIMIT, None: INK}[within(part.gap, cuts.audit_robustness_gap)]
    asked = f"{_short(part.gap)}; at most {num(cuts.audit_robustness_gap)} asked for"
    return f"Robustness gap{part.on}", num(part.gap.value), asked, colour


def _plot_speed(axes: Axes, audit: Audit, cuts: Cuts) -> bool:
    settings = [] if audit.speed is None else audit.speed.settings
    ordered = sorted(settings, key=lambda setting: ("decode", "forward").index(setting.phase) if setting.phase in
                     ("decode", "forward") else 2)  # fmt: skip
    shown = [setting for setting in ordered if setting.rate[0].value is not None][:8]
    if shown:
        throughput(axes, shown, cuts)
        axes.set_yticks(range(len(shown)), [f"{s.phase} {s.batch}×{s.length or 1}" for s in shown])
    return bool(shown)


def _plot_bits(axes: Axes, audit: Audit, cuts: Cuts) -> bool:
    part = audit.configurations or audit.optimum
    if part is None or not any((item[part.judged_by].value or 0) > 0 for item in part.items):
        return False
    cost_over_bits(axes, part, cuts, numbers=False)
    finish(axes, bits_axis(part.items)[1], MEASURES[part.judged_by], size=10)
    return True


def _plot_units(axes: Axes, audit: Audit, cuts: Cuts) -> bool:  # noqa: ARG001 (judged by no cut)
    """The most sensitive units, at the fewest bits."""
    part = audit.sensitivity
    if part is None or not part.bits:
        return False
    fewest = part.bits[-1]
    costs = {unit.name: value for unit in part.units if (value := unit.cost.get(fewest, NONE).value) is not None}
    ranked = sorted(costs.items(), key=lambda item: -item[1])[:8]
    if not ranked:
        return False
    axes.barh(np.arange(len(ranked)), [v for _, v in ranked], 0.65, color=COLOURS[2], alpha=0.8)
    axes.set_yticks(np.arange(len(ranked)), [shorten(n, 16) for n in without_stem([n for n, _ in ranked])])
    axes.set_ylim(max(len(ranked), 4) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter(lambda value, _: "0" if value <= 0 else plain(float(f"{value:.3g}")))
    finish(axes, f"{MEASURES[part.judged_by]} alone at {fewest} bits", size=10)
    return True


def _plot_attacks(axes: Axes, audit: Audit, cuts: Cuts) -> bool:  # noqa: ARG001 (judged by no cut)
    if audit.attacks is None or not (curves := families(audit.attacks)):
        return False
    accuracy_over_epsilon(axes, curves[0], audit.attacks.clean)
    axes.legend(fontsize=8, framealpha=0.8, edgecolor="none", loc="lower left")
    return True


def _plot_noise(axes: Axes, audit: Audit, cuts: Cuts) -> bool:
    kinds = {} if audit.noise is None else audit.noise.by_name()
    name = "weight_noise" if "weight_noise" in kinds else next(iter(kinds), "")
    if not name or not np.isfinite(values([level.kl for level in kinds[name]])).any():
        return False
    over_strength(axes, kinds[name], "kl", cuts.audit_kl)
    finish(axes, "σ of the weights" if name == "weight_noise" else name.replace("_", " "), "mean KL, nats", size=10)
    return True


def _plot_damage(axes: Axes, audit: Audit, cuts: Cuts) -> bool:  # noqa: ARG001 (judged by no cut)
    part = audit.perturbations
    levels = [] if part is None else [level for level in part.levels if level.name != "clean"]
    measured = [m for m in ("accuracy", "loss") if any(getattr(level, m).value is not None for level in levels)]
    if part is None or not measured:
        return False
    damage_lines(axes, part, measured[0])
    finish(axes, "share of the inputs damaged", measured[0], size=10)
    axes.legend(fontsize=8, framealpha=0.8, edgecolor="none", loc="lower left" if measured[0] == "accuracy" else "best")
    return True


PLOTS: dict[str, tuple[str, Callable[[Axes, Audit, Cuts], bool]]] = {
    "Throughput": ("speed", _plot_speed), "Cost of bits": ("configurations", _plot_bits),
    "Most sensitive units": ("sensitivity", _plot_units), "Attacks": ("attacks", _plot_attacks),
    "Noise on the weights": ("noise", _plot_noise), "Damaged inputs": ("perturbations", _plot_damage),
}  # fmt: skip
"""By title: the part that a plot shows, and its function, which says whether there was anything to draw."""
