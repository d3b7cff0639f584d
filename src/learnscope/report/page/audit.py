"""What an audit measured, as its page shows it: verdict cards, sizes against damage, layers by bits, robustness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from learnscope.findings.bits.bit_widths import damage, recommended_configuration
from learnscope.findings.bits.frontier import MEASURES
from learnscope.quantities.bits import BitSensitivity
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.audit_numbers import (
    DISTURBED,
    NONE,
    Entry,
    Number,
    at_level,
    duration,
    ends_text,
    on_examples,
    size,
)
from learnscope.reading.audit_parts import Configuration, Levels, Unit
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import num, percent
from learnscope.report.audit.threats import MASKING, PROMPTS, THREATS
from learnscope.store.reader import RunReader

Write = Callable[[float], str]


def audit_body(reader: RunReader, cuts: Cuts | None = None) -> dict[str, Any]:
    """Everything that only the page of an audit has."""
    audit, cuts = read_audit(reader), cuts or Cuts()
    return {
        "cards": [_quality(audit), _size(audit), _speed(audit)], "missing": dict(audit.missing),
        **_configurations(audit, cuts), **_sensitivities(audit),
        "robustness": _robustness(audit, cuts),
    }  # fmt: skip


def _card(title: str, lines: Sequence[tuple[str, Number, Write]], n: str, note: str = "") -> dict[str, Any]:
    """A verdict: its first line large; a number without an interval says why it has none."""
    known = [(name, number, write) for name, number, write in lines if number.value is not None]
    return {
        "title": title, "n": n.strip(), "note": note,
        "lines": [
            {"name": name, "value": write(n.value or 0.0), "ends": ends_text(n, write)} for name, n, write in known
        ],
        "reason": "" if known else next((number.reason or "" for _, number, _ in lines), "") or "not measured",
    }  # fmt: skip


def _quality(audit: Audit) -> dict[str, Any]:
    part = audit.quality
    if part is None:
        return _card("Quality", [], "", audit.missing.get("quality", ""))
    lines: list[tuple[str, Number, Write]] = [
        ("accuracy", part.accuracy, percent), ("loss", part.loss, num), ("perplexity", part.perplexity, num),
    ]  # fmt: skip
    return _card("Quality", lines, on_examples(part.examples, part.given, part.notes.get("data")))


def _size(audit: Audit) -> dict[str, Any]:
    best = recommended_configuration(audit)
    lines: list[tuple[str, Number, Write]] = []
    if best is not None:
        lines += [(f"as {best.name}", best["packed_bytes"], size), ("times smaller", best["compression"], num)]
    if audit.memory is not None:
        lines += [
            ("weights as stored", audit.memory.model_bytes, size),
            ("memory to run", audit.memory.run_bytes, size),
        ]
    note = damage(best) if best is not None else audit.missing.get("optimum", "")
    return _card("Size", lines, "" if best is None or audit.optimum is None else audit.optimum.on, note)


def _speed(audit: Audit) -> dict[str, Any]:
    if audit.speed is None or not audit.speed.settings:
        return _card("Speed", [], "", audit.missing.get("speed", ""))
    main = audit.speed.main
    rate, unit = main.rate
    lines: list[tuple[str, Number, Write]] = [
        (unit, rate, num),
        ("median latency", main.p50, duration),
        ("95th percentile", main.p95, duration),
    ]
    copies = audit.exported.copies if audit.exported else {}
    lines += [(f"times as fast in {name}", copy.speed_up, num) for name, copy in copies.items() if name != "original"]
    passes = "" if main.n is None else f"n = {main.n:,} passes, "
    return _card("Speed", lines, f"{passes}{main.description}")


def _configurations(audit: Audit, cuts: Cuts) -> dict[str, Any]:
    """Every configuration that was measured; where the search measured one again, on held-out data, that counts."""
    tried: dict[str, tuple[Configuration, str]] = {}
    for part in (audit.configurations, audit.optimum):
        if part is not None:
            tried |= {item.name: (item, part.judged_by) for item in part.items}
    best = recommended_configuration(audit)
    measure = next((by for _, by in tried.values()), "kl")
    return {
        "configurations": [_configuration(item, by, best) for item, by in tried.values()],
        "measure": MEASURES[measure] + (", nats" if measure == "kl" else ""),
        "limit": cuts.audit_kl if measure == "kl" else None,
        "recommended": best.name if best is not None else None,
    }  # fmt: skip


def _configuration(item: Configuration, measure: str, best: Configuration | None) -> dict[str, Any]:
    number = item[measure]
    return {
        "name": item.name, "family": item.family, "bytes": item["packed_bytes"].value, "bits": item["model_bits"].value,
        "compression": item["compression"].value, "damage": number.value, "low": number.low, "high": number.high,
        "reason": number.reason, "change": damage(item), "frontier": item["on_frontier"].value == 1,
        "accuracy": item["accuracy"].value, "recommended": best is not None and item.name == best.name,
    }  # fmt: skip


def _sensitivities(audit: Audit) -> dict[str, Any]:
    """The damage and the size of every unit at every width: what the page solves a budget from."""
    part = audit.sensitivity
    if part is None:
        return {"units": [], "rest_bytes": None, "chosen": {}}
    sizes: dict[str, dict[int, float]] = {}
    stored: dict[str, float] = {}
    for entry in part.of("unit", Entry):
        if (bits := entry.labels.get("bits")) is not None:
            if (n := entry[BitSensitivity.bytes.name].value) is not None:
                sizes.setdefault(entry.scope, {})[int(bits)] = n
        elif (n := entry[BitSensitivity.original_bytes.name].value) is not None:
            stored[entry.scope] = n
    between: Mapping[str, Any] = part.notes.get("between") or {}
    units = [
        {
            "name": unit.name, "layer": unit.layer, "part": unit.part, "original": stored.get(unit.name),
            "options": sorted(_widths(unit, sizes.get(unit.name, {}), between), key=lambda option: option["bits"]),
        }
        for unit in part.units
    ]  # fmt: skip
    whole = next(
        (item["original_bytes"].value for p in (audit.configurations, audit.optimum) if p for item in p.items), None
    )
    known = sum(stored.values()) if len(stored) == len(units) else None
    return {
        "units": units, "sensitivity_measure": MEASURES[part.judged_by], "sensitivity_on": part.on.strip(),
        "rest_bytes": None if whole is None or known is None else max(0.0, whole - known),
        "chosen": audit.optimum.chosen if audit.optimum is not None else {},
    }  # fmt: skip


def _widths(unit: Unit, sizes: Mapping[int, float], between: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The widths at which a unit was measured, and those whose damage was read off between them."""
    found: list[dict[str, Any]] = [
        {"bits": bits, "bytes": sizes.get(bits), "damage": cost.value, "reason": cost.reason}
        for bits, cost in unit.cost.items()
    ]
    read_off = {int(bits): of_units[unit.name] for bits, of_units in between.items() if unit.name in of_units}
    return found + [
        {"bits": bits, "bytes": numbers["bytes"], "damage": numbers["damage"], "reason": None, "read_off": True}
        for bits, numbers in read_off.items()
    ]


def _robustness(audit: Audit, cuts: Cuts) -> dict[str, Any]:
    part = audit.attacks
    target = str(part.notes.get("target", "inputs")) if part is not None else ""
    kind = "embeddings" if "embedding" in target else "inputs"
    return {
        "threat": "" if part is None else THREATS[kind], "target": target,
        "gap": None if part is None else _number(part.gap), "gap_limit": cuts.audit_robustness_gap,
        "clean": None if part is None or part.clean is None else _number(part.clean.accuracy),
        "attacks": [] if part is None else [
            {"name": a.name, "norm": a.norm, "epsilon": a.epsilon, "unit": a.unit, "steps": a.steps}
            | _number(a.accuracy)
            for a in part.attacks
        ],
        "on": "" if part is None else part.on.strip(),
        "prompts": _prompts(audit), "autoattack": _autoattack(audit),
        "noise": [*_levels(audit.noise), *_levels(audit.perturbations)],
        "transfer": [] if audit.transfer is None else [
            {"made": made, "tested": tested, **_number(n)} for (made, tested), n in audit.transfer.accuracy.items()
        ],
    }  # fmt: skip


def _prompts(audit: Audit) -> dict[str, Any] | None:
    """What changed prompts do, with intervals over examples; None where that was not measured."""
    part = audit.prompts
    if part is None:
        return None
    rows = [
        {
            "name": DISTURBED.get(each.name, (each.name, ""))[0], "share": each.level,
            "level": at_level(each.name, each.level), "accuracy": _number(each.accuracy_change),
            "loss": _number(each.loss_change), "kl": _number(each.kl),
        }
        for each in part.changes
    ]  # fmt: skip
    seeds = [seeds for each in part.changes if (seeds := each["seeds"].integer) is not None]
    return {
        "threat": PROMPTS, "on": part.on.strip(), "seeds": max(seeds, default=0), "rows": rows, "reason": part.reason,
    }  # fmt: skip


def _autoattack(audit: Audit) -> dict[str, Any] | None:
    """AutoAttack beside PGD: accuracies by attack, and the flags, null where one could not be told."""
    part = audit.autoattack
    if part is None:
        return None
    flags = [{"name": text, "value": part[flag].value, "reason": part[flag].reason} for flag, text in MASKING.items()]
    return {
        "clean": _number(NONE if part.clean is None else part.clean.accuracy), "gap": _number(part.gap),
        "pgd_gap": _number(part.pgd_gap), "on": part.on.strip(), "flags": flags, "said": part.notes.get("said") or [],
        "left_out": part.notes.get("left_out") or {},
        "rows": [
            {"name": each.name, "norm": each.norm, "epsilon": each.epsilon, "accuracy": _number(each.accuracy)}
            for each in part.attacks
        ],
    }  # fmt: skip


def _levels(part: Levels | None) -> list[dict[str, Any]]:
    if part is None:
        return []
    return [
        {
            "name": DISTURBED.get(name, (name, ""))[0], "level": at_level(name, level.level),
            "accuracy": _number(level.accuracy), "kl": _number(level.kl), "loss": _number(level.loss),
        }
        for name, levels in part.by_name().items()
        for level in levels
    ]  # fmt: skip


def _number(number: Number) -> dict[str, Any]:
    return {
        "value": number.value,
        "low": number.low,
        "high": number.high,
        "reason": number.reason or number.no_interval,
    }
