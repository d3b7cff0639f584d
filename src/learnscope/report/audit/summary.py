"""The summary of an audit in Markdown: what was looked at, and the numbers in tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learnscope.findings.bits.bit_widths import MEASURES, recommended_configuration, unseen
from learnscope.findings.robustness.robustness import worst_attack
from learnscope.reading.audit import PROBES, Audit
from learnscope.reading.audit_numbers import Number
from learnscope.reading.audit_parts import Configuration, Level
from learnscope.reading.audit_words import DISTURBED, at_level, by_strength, duration, signed, size
from learnscope.reading.words import capital, num
from learnscope.report.audit.panels import AuditFigure
from learnscope.report.markdown import escape, table
from learnscope.report.robustness.damage import FLAGS

Row = tuple[str, str, str, str]
HEAD = ("metric", "value", "95 % interval, or why not", "n")
MOST = 40
"""Configurations in the table; the others are in the results."""


def summary_text(
    audit: Audit, manifest: Mapping[str, Any], *, name: str, about: Mapping[str, Any],
    drawn: Sequence[AuditFigure], absent: Mapping[str, str],
) -> str:  # fmt: skip
    ran = len(PROBES) - len(audit.missing)
    parts = [
        f"# Audit of {escape(name)}",
        f"{ran} of {len(PROBES)} parts ran. Intervals are of 95 %; n is how many examples, passes or seeds a number "
        "rests on.",
        "## Model configuration", *_configuration(manifest, about),
        "## Key performance metrics", *_section(_performance(audit), audit, ("quality", "speed", "memory", "layers")),
        "## Optimal bit-width configuration", *_bits(audit),
        "## Robustness summary",
        *_section(_robustness(audit), audit, ("attacks", "noise", "perturbations", "transfer")),
    ]  # fmt: skip
    if drawn:
        parts.append("## Figures")
        for figure in drawn:
            parts += [f"### {figure.panel.title}", f"![{figure.panel.title}](plots/{figure.panel.file})"]
            parts.append(figure.panel.reading)
    if absent:
        parts += ["## Figures not made", table(("figure", "why"), [(f"`{file}`", why) for file, why in absent.items()])]
    if audit.missing:
        parts += ["## Not run", table(("part", "why"), list(audit.missing.items()))]
    return "\n\n".join(parts) + "\n"


def _configuration(manifest: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """What the run knows of the model, then what the caller says, a table for each group of facts."""
    model = manifest.get("model") or {}
    known = {key: model[key] for key in ("class", "parameters", "tensors", "dtypes") if model.get(key)}
    flat = {key: value for key, value in about.items() if not isinstance(value, Mapping)}
    groups = {key: value for key, value in about.items() if isinstance(value, Mapping) and value}
    out = [table(("", ""), _facts({**known, **flat}))] if known or flat else []
    for title, facts in groups.items():
        out += [f"### {escape(capital(str(title)))}", table(("", ""), _facts(facts))]
    return out or ["Nothing is known about the model."]


def _facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(key).replace("_", " "), _said(value)) for key, value in facts.items()]


def _said(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "n/a"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return num(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_said(entry)}" for key, entry in value.items())
    return ", ".join(map(_said, value)) if isinstance(value, list | tuple) else str(value)


def _section(rows: list[Row], audit: Audit, parts: Sequence[str]) -> list[str]:
    out = [table(HEAD, rows)] if rows else []
    missing = [f"{capital(part)}: {audit.missing[part]}." for part in parts if part in audit.missing]
    return out + ([escape("Not measured. " + " ".join(missing))] if missing else [])


def row(name: str, number: Number, n: int | None, write: Any = num) -> Row:
    """A number of the table; one that is not there has its reason in place of an interval."""
    said = "n/a" if number.value is None else write(number.value)
    ends = "" if number.interval is None else f"{write(number.interval[0])} to {write(number.interval[1])}"
    return name, said, number.why or "not measured" if number.value is None else ends, "" if n is None else f"{n:,}"


def _performance(audit: Audit) -> list[Row]:
    out: list[Row] = []
    if audit.quality is not None:
        part = audit.quality
        out += [row("loss", part.loss, part.n_examples), row("perplexity", part.perplexity, part.n_examples)]
        out.append(row("accuracy", part.accuracy, part.n_examples))
        out += [row(f"top-{k} accuracy", number, part.n_examples) for k, number in part.top_k.items()]
    if audit.speed is not None:
        for one in audit.speed.settings:
            rate, unit = one.rate
            out.append(row(f"{unit} ({one.said})", rate, one.n))
        if audit.speed.settings:
            main = audit.speed.main
            latencies = (("mean", main.mean), ("median", main.p50), ("P95", main.p95), ("P99", main.p99))
            out += [row(f"latency, {name} ({main.said})", number, main.n, duration) for name, number in latencies]
    if audit.memory is not None:
        memory = audit.memory
        out.append(row("parameters", memory.parameters, None, lambda value: f"{value:,.0f}"))
        for name, number in (("weights and buffers", memory.model_bytes), ("more to run", memory.run_bytes),
                             ("peak of the process", memory.peak_bytes)):  # fmt: skip
            out.append(row(name, number, None, size))
    if audit.layers is not None and audit.layers.total.value is not None:
        out.append(row("time of a pass with timed layers", audit.layers.total, audit.layers.n, duration))
    return out


def _bits(audit: Audit) -> list[str]:
    out = []
    best, part = recommended_configuration(audit), audit.optimum
    if best is not None and part is not None:
        rows = [
            row(f"{MEASURES[part.judged_by]} to the model itself", best[part.judged_by], part.examples),
            row("change of the loss", best["loss_change"], part.examples, signed),
            row("packed size", best["packed_bytes"], None, size), row("compression", best["compression"], None),
            row("bits a weight in blocks", best["block_bits"], None),
            row("bits a weight in the whole model", best["model_bits"], None),
        ]  # fmt: skip
        out += [f"Recommended: **{escape(best.name)}**, judged on data {unseen(part)}.",
                table(HEAD, rows)]  # fmt: skip
        out += _unit_bits(part.recommended)
    elif "optimum" in audit.missing:
        out.append(escape(f"None is recommended: {audit.missing['optimum']}."))
    tried = audit.configurations
    if tried is not None:
        ordered = sorted(tried.items, key=lambda one: -(one["packed_bytes"].value or 0.0))
        out += ["### All configurations", _configurations(ordered[:MOST], tried.judged_by)]
        if len(ordered) > MOST:
            out.append(f"{len(ordered) - MOST:,} more are in `analysis_results.json`.")
    elif "configurations" in audit.missing:
        out.append(escape(f"No configurations were compared: {audit.missing['configurations']}."))
    return out + _exported(audit)


def _exported(audit: Audit) -> list[str]:
    """Copies that were really timed; nothing else in this section is about time."""
    part = audit.exported
    if part is None:
        return [escape(f"Real latencies: {audit.missing['exported']}.")] if "exported" in audit.missing else []
    copies = {"original": part.original, **part.copies} if part.original is not None else part.copies
    rows: list[Sequence[str]] = []
    for name, copy in copies.items():
        if copy is None or copy.latency.value is None:
            rows.append((name, "n/a", "", "", "", (copy and copy.latency.why) or "not measured"))
            continue
        numbers = [row("", copy.latency, None, duration)[1], row("", copy.speed_up, None)[1]]
        rows.append((name, *numbers, row("", copy.held, None, size)[1], row("", copy.kl, None)[1], f"n = {copy.n}"))
    head = ("blocks held as", "median pass", "times as fast", "held in", "KL", "")
    return ["### Real latencies of packed weights (torchao)", table(head, rows)]


def _unit_bits(bits: Mapping[str, int]) -> list[str]:
    if not bits:
        return []
    have = sorted(set(bits.values()), reverse=True)
    rows = [(f"{b}", ", ".join(f"`{unit}`" for unit, own in bits.items() if own == b)) for b in have]
    return [table(("bits", "units"), rows)]


COLUMNS = ("configuration", "size", "bits a weight", "KL", "95 % interval", "change of the loss", "95 % interval",
           "accuracy", "frontier")  # fmt: skip


def _configurations(items: Sequence[Configuration], measure: str) -> str:
    head = [MEASURES[measure] if name == "KL" else name for name in COLUMNS]
    return table(head, [_configuration_row(one, measure) for one in items])


def _configuration_row(one: Configuration, measure: str) -> Sequence[str]:
    kl, change = row("", one[measure], None), row("", one["loss_change"], None, signed)
    packed, bits, accuracy = one["packed_bytes"], one["model_bits"], one["accuracy"]
    return (
        one.name, row("", packed, None, size)[1], row("", bits, None)[1], kl[1], kl[2], change[1], change[2],
        row("", accuracy, None)[1], "yes" if one["on_frontier"].value == 1 else "",
    )  # fmt: skip


def _robustness(audit: Audit) -> list[Row]:
    out: list[Row] = []
    if audit.attacks is not None:
        part = audit.attacks
        out.append(row("robustness gap", part.gap, part.examples))
        if part.clean is not None:
            out.append(row("accuracy, clean", part.clean.accuracy, part.examples))
        worst = worst_attack(part)
        if worst is not None:
            name = f"accuracy, {worst.name.upper()} of {worst.norm} epsilon {num(worst.epsilon)} ({worst.unit})"
            out.append(row(name, worst.accuracy, part.examples))
        out += [row(f"flag: {text}", part[flag], part.examples, lambda value: "yes" if value else "no")
                for flag, text in FLAGS.items()]  # fmt: skip
    for levels in (audit.noise, audit.perturbations):
        for name, found in ({} if levels is None else levels.by_name()).items():
            out += _strongest(name, by_strength(name, found)[-1])
    if audit.transfer is not None:
        for (made, tried), number in audit.transfer.accuracy.items():
            if made not in (0, tried):
                continue  # attacks on the model as stored, and on the very weights that they are tried on
            widths = [f"{bits} bits" if bits else "stored" for bits in (made, tried)]
            out.append(row(f"accuracy, PGD made on {widths[0]}, tried on {widths[1]}", number, audit.transfer.examples))
    return out


def _strongest(name: str, one: Level) -> list[Row]:
    what = f"{DISTURBED.get(name, (name, ''))[0]}, {at_level(name, one.level)}"
    known = [(text, number) for text, number in (("KL", one.kl), ("accuracy", one.accuracy), ("loss", one.loss))
             if number.value is not None]  # fmt: skip
    return [row(f"{text}, {what}", number, one.seeds) for text, number in known]
