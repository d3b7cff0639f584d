"""What attacks, noise and damaged inputs do to an audited model, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import DISTURBED, NONE, Number
from learnscope.reading.audit_parts import Attack, Attacks, Level, Levels, Transfer
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import capital, count, num, percent
from learnscope.report.audit import marks
from learnscope.report.audit.marks import ends, legend_below, limit, line, log_axis, log_span, values
from learnscope.report.layout import INK, QUIET, head, new_figure
from learnscope.report.style import COLOURS, finish, guides
from learnscope.store.reader import RunReader

ATTACKS = {"random": COLOURS[5], "fgsm": COLOURS[1], "pgd": COLOURS[0]}
UNITS = {"absolute": "", "relative": ", share of the norm", "token": ", share of the way to another token"}
NORMS = {"linf": "L∞", "l2": "L2"}
FLAGS = {
    "pgd_at_least_fgsm": "PGD no weaker than FGSM", "monotone_in_epsilon": "more damage with more epsilon",
    "monotone_in_steps": "more damage with more steps", "random_below_attack": "random noise weaker than attacks",
}  # fmt: skip


def attack_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    """Accuracy over the size of attacks, the gap beside what is allowed, and attacks across bit widths."""
    audit, cuts = read_audit(reader), cuts or Cuts()
    part, transfer = audit.attacks, audit.transfer
    curves = [] if part is None else families(part)
    gap = None if part is None or part.gap.value is None else part.gap
    panels = len(curves) + (gap is not None) + (transfer is not None)
    if not panels:
        return None
    figure = new_figure(4.6, max(4.1 * panels, 6.5) if panels < 4 else 14.0)
    grid = list(figure.subplots(1, panels, squeeze=False)[0])
    for attacks, axes in zip(curves, grid, strict=False):
        accuracy_over_epsilon(axes, attacks, None if part is None else part.clean)
    if gap is not None:
        _gap(grid[len(curves)], gap, cuts.audit_robustness_gap)
    if transfer is not None:
        _transfer(grid[-1], transfer)
    legend_below(figure, 5)
    head(figure, "Robustness to attacks", "" if part is None else "; ".join(_attack_facts(part)))
    return figure


def families(part: Attacks) -> list[list[Attack]]:
    """Attacks whose sizes can be compared: of one norm and one unit."""
    by_kind: dict[tuple[str, str], list[Attack]] = {}
    for attack in part.attacks:
        if attack.accuracy.value is not None:
            by_kind.setdefault((attack.norm, attack.unit), []).append(attack)
    return list(by_kind.values())


def _attack_facts(part: Attacks) -> list[str]:
    examples = "" if part.examples is None else f", {count(part.examples, 'example')}"
    words = {1.0: "yes", 0.0: "NO", None: "not measured"}
    flags = [f"{text}: {words.get(part[name].value, '?')}" for name, text in FLAGS.items()]
    shares = [a.zero_gradient_share.value for a in part.attacks if a.zero_gradient_share.value is not None]
    zeros = f"zero gradients: {percent(max(shares)) if shares else 'not measured'}"
    return [f"attacks on the {part.notes.get('target', 'inputs')}{examples}", *flags, zeros]


def accuracy_over_epsilon(axes: Axes, attacks: Sequence[Attack], clean: Attack | None) -> None:
    first = attacks[0]
    if clean is not None and clean.accuracy.value is not None:
        low, high = ends([clean.accuracy])
        axes.axhline(clean.accuracy.value, color=INK, lw=1.2, ls=":", label="clean")
        axes.axhspan(low[0], high[0], color=INK, alpha=0.08, lw=0)
    for name in dict.fromkeys(a.name for a in attacks):
        # of several attacks at one epsilon, the one with the most steps
        chosen = {a.epsilon: a for a in sorted(attacks, key=lambda a: a.steps) if a.name == name}
        sizes = sorted(chosen)
        label = name.upper() if name != "random" else "random noise of that size"
        line(axes, sizes, [chosen[e].accuracy for e in sizes], ATTACKS.get(name, COLOURS[2]), label)
    epsilons = sorted({a.epsilon for a in attacks if a.epsilon > 0})
    if len(epsilons) > 1 and epsilons[-1] > 8 * epsilons[0]:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(epsilons, [f"{e:.3g}" for e in epsilons])
    axes.set_ylim(bottom=0)
    guides(axes, "both")
    finish(axes, f"{NORMS.get(first.norm, first.norm)} epsilon{UNITS.get(first.unit, '')}", "accuracy", size=10)


def _gap(axes: Axes, gap: Number, most: float) -> None:
    marks.dots(axes, [gap], [COLOURS[0]], [True])
    limit(axes, most, f"gap of {num(most)}")
    low, high = ends([gap])
    axes.annotate(num(gap.value or 0.0), (gap.value or 0.0, 0), (0, 9), textcoords="offset points", ha="center",
                  fontsize=10, color=INK)  # fmt: skip
    axes.set_xlim(min(0.0, float(low[0]) * 1.1), 1.25 * max(float(high[0]), most))
    axes.locator_params(axis="x", nbins=5)
    marks.name_rows(axes, [""])
    guides(axes, "x")
    finish(axes, "accuracy that attacks take", size=10)
    axes.set_yticks([])
    axes.set_title("Robustness gap at the largest epsilon", loc="left", fontsize=10, color=INK)


def _transfer(axes: Axes, part: Transfer) -> None:
    """Accuracy by the bits that the attack was made at and those it was tested at."""
    made, tested = (sorted(set(bits), key=lambda b: (b != 0, -b)) for bits in zip(*part.accuracy, strict=True))
    grid = np.array([values([part.accuracy.get((m, t), NONE) for t in tested]) for m in made])
    if not np.isfinite(grid).any():
        marks.message(axes, "accuracy under attack was not measured")
        return
    axes.pcolormesh(np.ma.masked_invalid(grid), cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1)
    for row, column in np.argwhere(np.isfinite(grid)):
        value = float(grid[row, column])
        axes.text(column + 0.5, row + 0.5, f"{value:.2f}", ha="center", va="center", fontsize=9,
                  color="white" if value > 0.55 else INK)  # fmt: skip
    axes.set_xticks(np.arange(len(tested)) + 0.5, [f"{bits or 'stored'}" for bits in tested])
    axes.set_yticks(np.arange(len(made)) + 0.5, [f"{bits or 'stored'}" for bits in made])
    axes.set_ylim(len(made), 0)
    finish(axes, "tried on weights of so many bits", "made on so many bits", size=10)
    axes.tick_params(length=0)
    axes.set_title("Accuracy under PGD across bits", loc="left", fontsize=10, color=INK)


def _measured(part: Levels) -> list[tuple[str, str]]:
    """What was measured at any level, with its label."""
    return [(m, text) for m, text in MEASURED if any(getattr(level, m).value is not None for level in part.levels)]


def noise_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:
    part, cuts = read_audit(reader).noise, cuts or Cuts()
    kinds, rows = ({}, []) if part is None else (part.by_name(), _measured(part))
    if part is None or not kinds or not rows:
        return None
    figure = new_figure(1.4 + 2.5 * len(rows), 5.0 * max(len(kinds), 1.4))
    grid = figure.subplots(len(rows), len(kinds), squeeze=False)
    for column, (name, levels) in enumerate(kinds.items()):
        what, unit = DISTURBED.get(name, (name, "level"))
        for row, (measure, label) in enumerate(rows):
            axes = grid[row, column]
            over_strength(axes, levels, measure, cuts.audit_kl if measure == "kl" else None)
            finish(axes, unit if row == len(rows) - 1 else "", label if column == 0 else "", size=10)
        grid[0, column].set_title(capital(what), loc="left", fontsize=10, color=INK)
    legend_below(figure, 3)
    seeds = {level.seeds for level in part.levels if level.seeds}
    over = f"mean and 95 % interval over {min(seeds)} seeds" if seeds else ""
    facts = f"{over}{part.on}".strip()
    head(figure, "Robustness to noise on the weights", facts)
    return figure


MEASURED = (("kl", "mean KL, nats"), ("accuracy", "accuracy"), ("loss", "loss"))


def over_strength(axes: Axes, levels: Sequence[Level], measure: str, most: float | None = None) -> None:
    """Noise from weak to strong, its few levels at equal distances."""
    numbers: list[Number] = [getattr(level, measure) for level in levels]
    line(axes, range(len(levels)), numbers, COLOURS[0], "")
    axes.set_xticks(range(len(levels)), [f"{level.level:g}" for level in levels])
    axes.set_xlim(-0.4, len(levels) - 0.6)
    if most is not None:
        limit(axes, most, f"KL {num(most)}", across=True)
    span = log_span(np.concatenate(ends(numbers)), *([] if most is None else [most]))
    if measure == "kl" and span is not None:
        log_axis(axes, *span)
        for place in np.flatnonzero(values(numbers) == 0):
            axes.annotate("0", (float(place), 0), (0, 3), xycoords=("data", "axes fraction"), ha="center", fontsize=9,
                          textcoords="offset points", color=COLOURS[0], fontweight="bold")  # fmt: skip
    elif measure == "accuracy":
        axes.set_ylim(bottom=0)
    if not np.isfinite(values(numbers)).any():
        axes.text(0.5, 0.5, "not measured", ha="center", va="center", fontsize=9, color=QUIET, transform=axes.transAxes)
    guides(axes, "both")


def perturbation_figure(reader: RunReader, cuts: Cuts | None = None) -> Figure | None:  # noqa: ARG001 (no threshold)
    part = read_audit(reader).perturbations
    measured = [] if part is None else [(name, label) for name, label in _measured(part) if name != "kl"]
    if part is None or not part.by_name() or not measured:
        return None
    figure = new_figure(4.0, 5.0 * len(measured) if len(measured) > 1 else 7.0)
    units = {DISTURBED.get(name, ("", "level"))[1] for name in part.by_name()}
    for axes, (measure, label) in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured, strict=True):
        damage_lines(axes, part, measure)
        finish(axes, "share of the inputs" if units == {"share"} else "level", label, size=10)
    legend_below(figure, 4)
    seeds = {level.seeds for level in part.levels if level.seeds and level.name != "clean"}
    over = f"mean and 95 % interval over {min(seeds)} seeds" if seeds else "seeds not recorded"
    head(figure, "Robustness to damaged inputs", f"{over}{part.on}")
    return figure


def damage_lines(axes: Axes, part: Levels, measure: str) -> None:
    clean = None if part.clean is None else getattr(part.clean, measure).value
    if clean is not None:
        axes.axhline(clean, color=INK, lw=1.2, ls=":", label="clean")
    for (name, levels), colour in zip(part.by_name().items(), COLOURS, strict=False):
        what = DISTURBED.get(name, (name, ""))[0]
        line(axes, [level.level for level in levels], [getattr(level, measure) for level in levels], colour, what)
    if measure == "accuracy":
        axes.set_ylim(bottom=0)
    guides(axes, "both")
