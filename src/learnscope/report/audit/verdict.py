"""The verdict of an audit in about ten lines: what it is, which bits to use, how fast it is, what to worry about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learnscope.findings import find, findings_of
from learnscope.findings.bits.frontier import MEASURES, described, lost, searched, smaller
from learnscope.findings.cost.deployment import audit_deployment
from learnscope.findings.cost.exported import exported
from learnscope.reading.audit import Audit, Frontier, read_audit
from learnscope.reading.audit_numbers import interval_text, size
from learnscope.reading.audit_parts import Configuration, Optimum
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import num, percent
from learnscope.store.reader import RunReader

VERDICTS = {"Suits": "yes", "Does": "no", "Not": "not judged", "Whether": "cannot be told"}
"""Short forms of the verdicts on scenarios, by their first words."""
WARNINGS = 3
"""Titles of warnings that are shown."""
Line = tuple[str, str]
"""What it is about, and what is said."""


def verdict(reader: RunReader, cuts: Cuts | None = None) -> list[Line]:
    """The lines, most important first; what was not measured has none."""
    audit, cuts = read_audit(reader), cuts or Cuts()
    lines = [_model(audit), *_bits(audit.optimum), _fastest(audit), _speed(audit), _attacks(audit)]
    shown = [line for line in lines if line is not None]
    suits = [
        f"{finding.kind.removeprefix('audit_suits_').replace('_', ' ')} {VERDICTS.get(finding.title.split()[0], '?')}"
        for finding in findings_of(audit_deployment, reader, cuts)
    ]
    shown += [("suits", ", ".join(suits))] if suits else []
    grave = [finding for finding in find(reader, cuts) if finding.severity != "info" and not finding.acknowledged]
    shown += [(finding.severity, finding.title) for finding in grave[:WARNINGS]]
    return shown + ([("", f"and {len(grave) - WARNINGS} more warnings")] if len(grave) > WARNINGS else [])


def _model(audit: Audit) -> Line | None:
    facts = []
    if audit.memory is not None and audit.memory.model_bytes.value is not None:
        facts.append(size(audit.memory.model_bytes.value))
    part = audit.quality
    if part is not None:
        numbers = {"perplexity": part.perplexity, "accuracy": part.accuracy, "loss": part.loss}
        name = next((name for name, number in numbers.items() if number.value is not None), None)
        facts += [f"{name} {interval_text(numbers[name])}{part.on}"] if name is not None else []
    return ("model", ", ".join(facts)) if facts else None


def _bits(part: Optimum | None) -> list[Line]:
    if not isinstance(part, Frontier):
        best = None if part is None else part.named(part.recommended_name)
        return [] if best is None else [("bits", f"{best.name}, {smaller(best)}")]
    lines = []
    budget = part.choice("at_size") or part.choice("at_damage")
    same, within = part.choice("indistinguishable"), part.choice("within")
    if budget is not None:
        limit = part["budget_bytes"].value
        asked = f"best in {size(limit)}" if limit is not None else f"KL at most {num(part['budget_kl'].value or 0)}"
        lines.append((asked, _answer(part, *budget)))
    if same is not None:
        label = "smallest as good" if not same[1].get("reason") else "smallest, by means"
        lines.append((label, _answer(part, *same)))
    if within is not None and same is not None and within[0].name != same[0].name:
        label = f"smallest at {percent(within[1]['allowed'])}"
        lines.append((label, _answer(part, *within)))
    if part.recommended_name is not None:
        lines.append(("recommended", f"{part.recommended_name}: {described(part, part.recommended_name)}"))
    return [*lines, ("how", searched(part))]


def _answer(part: Frontier, item: Configuration, facts: Mapping[str, Any]) -> str:
    """A configuration, its size, what it loses, and how far its outputs are off where that is another number."""
    other = facts["measure"] != part.judged_by and facts["damage"]
    return f"{item.name}, {smaller(item)}: {lost(facts)}" + (
        f", {MEASURES[part.judged_by]} {num(facts['damage'])}" if other else ""
    )


def _fastest(audit: Audit) -> Line | None:
    finding = None if audit.exported is None else exported(audit.exported)
    return None if finding is None else ("packed speed", finding.title)


def _speed(audit: Audit) -> Line | None:
    settings = [] if audit.speed is None else [s for s in audit.speed.settings if s.rate[0].value is not None]
    by_phase = {setting.phase: setting for setting in reversed(settings)}
    said = [f"{num(s.rate[0].value or 0)} {s.rate[1]} ({s.description})" for s in reversed(by_phase.values())]
    return ("speed here", "; ".join(said)) if said else None


def _attacks(audit: Audit) -> Line | None:
    """Of a language model the prompts that anybody could send: nobody who sends text can move its embeddings."""
    part, worst = audit.attacks, None if audit.prompts is None else audit.prompts.worst
    if worst is not None and audit.prompts is not None and (part is None or part.notes.get("target") == "embeddings"):
        what = f"{worst.name.replace('_', ' ')} in {percent(worst.level)} of the places"
        return (
            "changed prompts",
            f"{what}: accuracy changes by {interval_text(worst.accuracy_change)}{audit.prompts.on}",
        )
    if part is None or part.gap.value is None:
        return None
    return "attacks", f"accuracy falls by {interval_text(part.gap)}{part.on}, on {part.notes.get('target', 'inputs')}"
