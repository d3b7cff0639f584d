"""The summary of an audit in Markdown: one page, with its numbers in tables that unfold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.findings.bits.bit_widths import recommended_configuration, unseen
from learnscope.findings.bits.frontier import MEASURES, described, searched
from learnscope.findings.robustness.robustness import worst_attack
from learnscope.reading.audit import PARTS, Audit, Frontier
from learnscope.reading.audit_numbers import (
    DISTURBED,
    OWN_SAMPLES,
    Number,
    Part,
    at_level,
    duration,
    ends_text,
    signed,
    size,
)
from learnscope.reading.words import capital, num
from learnscope.report.audit.panels import AuditFigure
from learnscope.report.audit.threats import MASKING, PROMPTS, THREATS
from learnscope.report.markdown import escape, folded, table
from learnscope.report.robustness.damage import FLAGS

Row = tuple[str, str, str, str]
HEAD = ("metric", "value", "95 % interval, or why not", "n")
SHOWN_CLASSES = 20
MOST = 40
"""Configurations in the table; the others are in the results."""


def summary_text(
    audit: Audit, manifest: Mapping[str, Any], *, name: str, about: Mapping[str, Any],
    drawn: Sequence[AuditFigure], absent: Mapping[str, str], verdict: Sequence[tuple[str, str]] = (),
) -> str:  # fmt: skip
    ran = len(PARTS) - len(audit.missing)
    parts = [
        f"# Audit of {escape(name)}",
        f"{ran} of {len(PARTS)} parts ran. Intervals are of 95 %; n is how many examples, passes or seeds a number "
        "rests on.",
        *(["## Verdict", table(("", ""), [(label, text) for label, text in verdict])] if verdict else []),
        "## Model configuration", folded("what was examined, and on what", _configuration(manifest, about)),
        "## Key performance metrics", *_section(_performance(audit), audit, ("quality", "speed", "memory", "layers")),
        *_tasks(audit),
        "## Optimal bit-width configuration", *_rests_on(audit.optimum), *_bits(audit),
        "## Robustness summary", *_rests_on(audit.attacks),
        *_section(_robustness(audit), audit, ("prompts", "attacks", "noise", "perturbations", "transfer"),
                  threats(audit)),
        *(["## Figures"] if drawn else []),
    ]  # fmt: skip
    for panel in (figure.panel for figure in drawn):
        parts += [f"### {panel.title}", f"![{panel.title}](plots/{panel.file})", panel.reading]
    if absent:
        parts += ["## Figures not made", table(("figure", "why"), [(f"`{file}`", why) for file, why in absent.items()])]
    if audit.missing:
        parts += ["## Not run", table(("part", "why"), list(audit.missing.items()))]
    return "\n\n".join(parts) + "\n"


def _configuration(manifest: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """Facts of the run and of the caller about the model, a table for each group of them."""
    model = manifest.get("model") or {}
    flat = {key: model[key] for key in ("class", "parameters", "tensors", "dtypes") if model.get(key)}
    flat |= {key: value for key, value in about.items() if not isinstance(value, Mapping)}
    out = [table(("", ""), _facts(flat))] if flat else []
    for title, facts in about.items():
        if isinstance(facts, Mapping) and facts:
            out += [f"### {escape(capital(str(title)))}", table(("", ""), _facts(facts))]
    return out or ["Nothing is known about the model."]


def _facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(key).replace("_", " "), _text(value)) for key, value in facts.items()]


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "n/a"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return num(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(entry)}" for key, entry in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def _section(rows: list[Row], audit: Audit, parts: Sequence[str], above: Sequence[str] = ()) -> list[str]:
    """All its numbers, behind a line: the verdict has those that count."""
    out = [folded(f"all {len(rows)} numbers", [*above, table(HEAD, rows)])] if rows else []
    missing = [f"{capital(part)}: {audit.missing[part]}." for part in parts if part in audit.missing]
    return out + ([escape("Not measured. " + " ".join(missing))] if missing else [])


def row(name: str, number: Number, n: int | Part | None, write: Any = num) -> Row:
    """A row of the table; a missing number, or a missing interval, has its reason in place of the interval.

    Of a part, its examples are n.
    """
    sample = _examples(n) if isinstance(n, Part) else "" if n is None else f"{n:,}"
    if number.value is None:
        return name, "n/a", number.reason or "not measured", sample
    return name, write(number.value), ends_text(number, write), sample


def _where(part: Part) -> str:
    return f" on {OWN_SAMPLES}" if part.own_samples else ""


def _rests_on(part: Part | None) -> list[str]:
    """What the numbers of a section rest on, where that is less or other than data that were given."""
    if part is None or not (part.own_samples or part.notes.get("reduced")):
        return []
    said = [f"All of it{_where(part)}"] if part.own_samples else []
    said += [f"to save time: {part.notes['reduced']}"] if part.notes.get("reduced") else []
    return [escape(f"{capital('; '.join(said))}.")]


def _examples(part: Part) -> str:
    if part.examples is None:
        return ""
    return f"{part.examples:,}" + ("" if part.given in (None, part.examples) else f" of {part.given:,}")


def _cell(number: Number, write: Any = num) -> str:
    return row("", number, None, write)[1]


def _performance(audit: Audit) -> list[Row]:
    out: list[Row] = []
    if (quality := audit.quality) is not None:
        tops = {f"top-{k} accuracy": number for k, number in quality.top_k.items()}
        numbers = {"loss": quality.loss, "perplexity": quality.perplexity, "accuracy": quality.accuracy, **tops}
        if len(quality.by_class) <= SHOWN_CLASSES:
            numbers |= {f"accuracy of class {name}": number for name, number in quality.by_class.items()}
        where = _where(quality)
        out += [row(f"{name}{where}", number, quality) for name, number in numbers.items()]
    if audit.speed is not None and audit.speed.settings:
        for setting in audit.speed.settings:
            rate, unit = setting.rate
            out.append(row(f"{unit} ({setting.description})", rate, setting.n))
        main = audit.speed.main
        latencies = {"mean": main.mean, "median": main.p50, "P95": main.p95, "P99": main.p99}
        at = main.description
        out += [row(f"latency, {name} ({at})", number, main.n, duration) for name, number in latencies.items()]
    if (memory := audit.memory) is not None:
        out += [
            row("parameters", memory.parameters, None, "{:,.0f}".format),
            row("weights and buffers", memory.model_bytes, None, size),
        ]
        for one in memory.running:
            out += [
                row(f"cache of keys and values ({one.where})", one.cache, None, size),
                row(f"activations, {one.phase} ({one.where})", one.activations, None, size),
            ]
        if memory.process is not None:
            out.append(row(f"high-water mark of the process ({memory.process})", memory.peak_bytes, None, size))
    if audit.layers is not None and audit.layers.total.value is not None:
        out.append(row("time of a pass with timed layers", audit.layers.total, audit.layers.n, duration))
    return out


def _bits(audit: Audit) -> list[str]:
    out = []
    best, part = recommended_configuration(audit), audit.optimum
    if best is not None and part is not None:
        rows = [
            row(f"{MEASURES[part.judged_by]} to the model itself", best[part.judged_by], part),
            row("change of the loss", best["loss_change"], part, signed),
            row("packed size", best["packed_bytes"], None, size), row("compression", best["compression"], None),
            row("bits a weight in blocks", best["block_bits"], None),
            row("bits a weight in the whole model", best["model_bits"], None),
        ]  # fmt: skip
        out += [f"Recommended: **{escape(best.name)}**, judged on data {unseen(part)}.", table(HEAD, rows)]
        if isinstance(part, Frontier):
            out.append(escape(f"{capital(described(part, best.name))}. {capital(searched(part))}."))
            out += [escape(f"Not tried: {name}: {why}.") for name, why in part.notes.get("left_out", {}).items()]
        units: dict[int, list[str]] = {}
        for unit, width in part.recommended.items():
            units.setdefault(width, []).append(f"`{unit}`")
        if units:
            by_width = sorted(units.items(), reverse=True)
            out.append(table(("bits", "units"), [(f"{width}", ", ".join(names)) for width, names in by_width]))
    elif "optimum" in audit.missing:
        out.append(escape(f"None is recommended: {audit.missing['optimum']}."))
    tried = audit.configurations
    if tried is not None:
        ordered = sorted(tried.items, key=lambda item: -(item["packed_bytes"].value or 0.0))
        columns = [MEASURES[tried.judged_by] if name == "KL" else name for name in COLUMNS]
        lines = []
        for item in ordered[:MOST]:
            damage, change = row("", item[tried.judged_by], None), row("", item["loss_change"], None, signed)
            lines.append((item.name, _cell(item["packed_bytes"], size), _cell(item["model_bits"]), damage[1], damage[2],
                          change[1], change[2], _cell(item["accuracy"]),
                          "yes" if item["on_frontier"].value == 1 else ""))  # fmt: skip
        more = [f"{len(ordered) - MOST:,} more are in `analysis_results.json`."] if len(ordered) > MOST else []
        out += ["### All configurations", folded(f"{len(lines)} configurations", [table(columns, lines), *more])]
    else:
        out.append(escape(f"No configurations were compared: {audit.missing['configurations']}."))
    return out + _exported(audit)


def _exported(audit: Audit) -> list[str]:
    """Copies that were timed; nothing else in this section is about time."""
    part = audit.exported
    if part is None:
        return [escape(f"Real latencies: {audit.missing['exported']}.")]
    rows: list[Sequence[str]] = []
    for copy in part.copies.values():
        if copy.latency.value is None:
            rows.append((copy.name, "n/a", "", "", "", "", copy.latency.reason or "not measured"))
            continue
        fast = [row("", number, None)[1:3] for number in (copy.speed_up, copy.decode_speed_up)]
        times = [f"{value} ({ends})" if ends and value != "n/a" else value for value, ends in fast]
        numbers = (_cell(copy.latency, duration), *times, _cell(copy.held, size), _cell(copy.kl))
        rows.append((copy.name, *numbers, f"n = {copy.n}"))
    columns = ("blocks held as", "median pass", "times as fast", "decoding, times as fast", "held in", "KL", "")
    return ["### Real latencies of packed weights (torchao)", folded(f"{len(rows)} copies", [table(columns, rows)])]


COLUMNS = ("configuration", "size", "bits a weight", "KL", "95 % interval", "change of the loss", "95 % interval",
           "accuracy", "frontier")  # fmt: skip


def threats(audit: Audit) -> list[str]:
    """Who could do what is measured below."""
    said = [PROMPTS] if audit.prompts is not None and audit.prompts.changes else []
    if audit.attacks is not None:
        said.append(THREATS["embeddings" if audit.attacks.notes.get("target") == "embeddings" else "inputs"])
    return [" ".join(said)] if said else []


def _tasks(audit: Audit) -> list[str]:
    if audit.tasks is None:
        return []
    rows = []
    for task in audit.tasks.tasks:
        numbers = task.measured or {"accuracy": task.acc if task.acc.value is None else task.exact_match}
        rows += [row(f"{name}, {task.name}", number, task.questions) for name, number in numbers.items()]
        if task.chance.value is not None:
            rows.append(row(f"guessing, {task.name}", task.chance, task.questions))
    return ["### Questions with known answers", table(HEAD, rows)]


def _robustness(audit: Audit) -> list[Row]:
    out: list[Row] = []
    for change in [] if audit.prompts is None else audit.prompts.changes:
        what = f"{DISTURBED.get(change.name, (change.name, ''))[0]}, {at_level(change.name, change.level)}"
        out.append(row(f"change of accuracy, {what}", change.accuracy_change, audit.prompts, signed))
        out.append(row(f"KL, {what}", change.kl, audit.prompts))
    if audit.attacks is not None:
        part = audit.attacks
        out.append(row("robustness gap", part.gap, part))
        if part.clean is not None:
            out.append(row("accuracy, clean", part.clean.accuracy, part))
        worst = worst_attack(part)
        if worst is not None:
            name = f"accuracy, {worst.name.upper()} of {worst.norm} epsilon {num(worst.epsilon)} ({worst.unit})"
            out.append(row(name, worst.accuracy, part))
        out += [row(f"flag: {text}", part[flag], part, lambda value: "yes" if value else "no")
                for flag, text in FLAGS.items()]  # fmt: skip
    if (auto := audit.autoattack) is not None:
        out += [row("robustness gap, AutoAttack", auto.gap, auto), row("overlooked by PGD", auto.pgd_gap, auto, signed)]
        out += [row(f"accuracy, {each.name} of {each.norm} epsilon {num(each.epsilon)}", each.accuracy, auto)
                for each in auto.attacks]  # fmt: skip
        out += [row(f"flag: {text}", auto[flag], auto, lambda value: "yes" if value else "no")
                for flag, text in MASKING.items()]  # fmt: skip
    for levels in (audit.noise, audit.perturbations):
        for name, each in ({} if levels is None else levels.by_name()).items():
            strongest = each[-1]
            what = f"{DISTURBED.get(name, (name, ''))[0]}, {at_level(name, strongest.level)}"
            numbers = {"KL": strongest.kl, "accuracy": strongest.accuracy, "loss": strongest.loss}
            out += [row(f"{key}, {what}", n, strongest.seeds) for key, n in numbers.items() if n.value is not None]
    if audit.transfer is not None:
        for (made, tested), number in audit.transfer.accuracy.items():
            if made in (0, tested):  # attacks on the model as stored, and on the very weights that they are tested on
                widths = [f"{bits} bits" if bits else "stored" for bits in (made, tested)]
                name = f"accuracy, PGD made on {widths[0]}, tried on {widths[1]}"
                out.append(row(name, number, audit.transfer))
    return out
