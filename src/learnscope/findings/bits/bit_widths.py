"""Which bit widths an audited model takes, what they cost, and which weights are most sensitive."""

from __future__ import annotations

import numpy as np

from learnscope.findings import analysis, not_an_audit
from learnscope.findings.bits.frontier import MEASURES, frontier_findings
from learnscope.reading.audit import Audit, Frontier, read_audit
from learnscope.reading.audit_numbers import NONE, evidence, interval_text, size, widths
from learnscope.reading.audit_parts import Configuration, Configurations, Optimum, Sensitivity, Tried
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Evidence, Finding, nonfinite
from learnscope.store.reader import RunReader

STANDS_OUT = 2.0
"""A unit is named if it is so many times as sensitive as the median unit: one is always the most sensitive."""


@analysis(place=180, check="bit widths (audit)", unless=not_an_audit)
def audit_bits(reader: RunReader, cuts: Cuts) -> list[Finding]:
    audit = read_audit(reader)
    found: list[Finding | None] = []
    part, every = audit.optimum, audit.configurations
    if isinstance(part, Frontier):
        found += frontier_findings(part, cuts)
    elif part is not None:
        found += [recommended(part), mixed_or_uniform(part)]
    if every is not None and not (isinstance(part, Frontier) and every.probe == part.probe):
        found += [smallest_near(every, cuts), frontier(every, cuts), not_additive(every, cuts)]
    found += [not_finite(every, cuts)] if every is not None else []
    found += [sensitive(audit.sensitivity, cuts)] if audit.sensitivity is not None else []
    return [finding for finding in found if finding is not None]


def recommended_configuration(audit: Audit) -> Configuration | None:
    """The configuration that the search recommends, as measured on held-out data."""
    return None if audit.optimum is None else audit.optimum.named(audit.optimum.recommended_name)


def damage(item: Configuration) -> str:
    """Whether the loss changed by more than chance."""
    change = item["loss_change"]
    if change.value is None:
        return "The change of the loss was not measured."
    number = interval_text(change, sign=True)
    if change.interval is None:
        why = "" if change.no_interval else ", without an interval"
        return f"The loss changes by {number}{why}: whether that is more than chance cannot be told."
    low, high = change.interval
    if low <= 0 <= high:
        return f"The loss changes by {number}, which cannot be told from none."
    return f"The loss {'rises' if low > 0 else 'falls'}, {number}: more than chance."


def unseen(part: Optimum) -> str:
    """Whether the examples differ from those that the widths were chosen on."""
    if part.notes.get("held_out") is False:
        return "that the widths were also chosen on, for there are no others"
    if part.notes.get("sensitivities") == "file":
        return "of which it is not known whether the widths were chosen on them"
    return "that the choice did not see"


def _size_facts(item: Configuration) -> str:
    packed, original = item["packed_bytes"].value, item["original_bytes"].value
    if packed is None or original is None:
        return ""
    facts = f"{num(item['compression'].value or original / packed)} times smaller"
    if item["model_bits"].value is not None:
        facts += f", {num(item['model_bits'].value)} bits a weight in the whole model"
    return f"{size(packed)} of {size(original)} ({facts})"


def _size(item: Configuration) -> float:
    return item["packed_bytes"].value or 0.0


def recommended(part: Optimum) -> Finding | None:
    item = part.named(part.recommended_name)
    if item is None:
        return None
    measure = part.judged_by
    bits, facts = widths(part.recommended) if part.recommended else "all as stored", _size_facts(item)
    change = item["loss_change"].interval
    if change is not None and change[0] > 0:
        advice = "The loss rises measurably: take it for the size only if that is worth it, else give a larger budget."
    elif part.recommended:
        advice = "Write the model with them: learnscope audit --export FILE, or export(FILE) of a BitWidthAnalyzer."
    else:
        advice = "The budget has room for the model as it is: ask for a smaller one."
    return Finding(
        kind="audit_recommended_bits", severity="info",
        title=f"Recommended widths: {bits}" + (f", {facts}" if facts else ""),
        detail=f"With {item.name}, the {MEASURES[measure]} to the model itself is {interval_text(item[measure])}"
        f"{part.on} {unseen(part)}. {damage(item)}",
        advice=advice, scopes=list(part.recommended),
        evidence=evidence(part.probe, measure, part.examples, item[measure]),
    )  # fmt: skip


def mixed_or_uniform(part: Optimum) -> Finding | None:
    """Whether mixing widths pays, on data that the mix was not chosen on."""
    mixed, measure = part.named("optimal"), part.judged_by
    rivals = [item for item in part.items if item.name.startswith("uniform_") and item[measure].value is not None]
    if mixed is None or mixed[measure].value is None or not rivals or part.mixed_wins.value is None:
        return None
    chosen = next((item for item in rivals if item.name == part.recommended_name), None)
    limit = part["budget_bytes"].value or mixed["packed_bytes"].value or np.inf
    fitting = [item for item in rivals if _size(item) <= limit]  # a larger one may be better, and is no rival
    wins = part.mixed_wins.value == 1
    if not fitting and wins:
        return None
    best = chosen or min(fitting or rivals, key=lambda item: item[measure].value or 0.0)
    bits = part.notes.get("bits") or {}
    if bits and bits.get(mixed.name) == bits.get(best.name):
        return None  # the best mix is that width
    unsure = part.notes.get("verdict_reason")
    sizes = ["n/a" if (n := item["packed_bytes"].value) is None else size(n) for item in (mixed, best)]
    return Finding(
        kind="audit_mixed_wins" if wins else "audit_uniform_as_good", severity="info",
        title=f"Mixed widths are {'better' if wins else 'no better'} than {best.name}",
        detail=f"The best mix has a {MEASURES[measure]} of {interval_text(mixed[measure])} in {sizes[0]}, "
        f"{best.name} {interval_text(best[measure])} in {sizes[1]}{part.on} {unseen(part)}."
        + (f" Their difference has no interval: {unsure}." if unsure and not wins else ""),
        advice=f"Use the mix: {widths(part.chosen)}." if wins else f"Use {best.name}: one width for all is simpler.",
        evidence=evidence(part.probe, measure, part.examples, mixed[measure]),
    )  # fmt: skip


def smallest_near(part: Configurations, cuts: Cuts) -> Finding | None:
    """The smallest configuration whose KL, at the upper end of the interval, is within the threshold.

    Without an interval, a KL within the threshold says nothing of other examples.
    """
    tried = [item for item in part.items if item.name != "original" and item["packed_bytes"].value is not None]
    if part.judged_by != "kl" or not tried:
        return None

    def worst(item: Configuration) -> float:
        return np.inf if (high := item["kl"].high) is None else high

    def mean(item: Configuration) -> float:
        return np.inf if (value := item["kl"].value) is None else value

    near = [item for item in tried if worst(item) <= cuts.audit_kl]
    unknown = [item for item in tried if item["kl"].interval is None and mean(item) <= cuts.audit_kl]
    if not near and unknown:
        item = min(unknown, key=_size)
        return Finding(
            kind="audit_near_not_known", severity="warning",
            title=f"Whether any configuration stays within a KL of {num(cuts.audit_kl)} cannot be told",
            detail=f"On average {item.name} does, with a mean KL of {interval_text(item['kl'])}"
            f"{part.on}. {damage(item)}",
            advice="Compare the outputs on more examples: --examples, or examples= of BitWidths.",
            evidence=evidence(part.probe, "kl", part.examples, item["kl"]), scopes=[item.name],
        )  # fmt: skip
    if not near:
        closest = min(tried, key=mean)
        return Finding(
            kind="audit_no_width_near", severity="warning",
            title=f"None of {count(len(tried), 'configuration')} stays within a KL of {num(cuts.audit_kl)}",
            detail=f"The closest, {closest.name}, has a mean KL of {interval_text(closest['kl'])}"
            f"{part.on}. {damage(closest)}",
            advice="Leave the most sensitive weights at more bits, or use groups of weights with scales of their own.",
            evidence=evidence(part.probe, "kl", part.examples, closest["kl"]), scopes=[closest.name],
        )  # fmt: skip
    item = min(near, key=_size)
    smaller = [other.name for other in unknown if _size(other) < _size(item)]
    doubt = f" Not known for want of an interval: {listed(smaller, cuts.names_listed)}." if smaller else ""
    return Finding(
        kind="audit_smallest_near", severity="info",
        title=f"The smallest configuration within a KL of {num(cuts.audit_kl)} is {item.name}: {_size_facts(item)}",
        detail=f"Its mean KL to the model itself is {interval_text(item['kl'])}"
        f"{part.on}. {damage(item)}{doubt}",
        advice=f"Of {count(len(tried), 'configuration')} tried, {len(tried) - len(near) - len(smaller)} are further "
        "off: audit_kl in Cuts moves what counts as near.",
        evidence=evidence(part.probe, "kl", part.examples, item["kl"]), scopes=[item.name],
    )  # fmt: skip


def frontier(part: Configurations, cuts: Cuts) -> Finding | None:
    on_it = [item for item in part.items if item["on_frontier"].value == 1 and item["packed_bytes"].value is not None]
    if not on_it or len(part.items) < 3:
        return None
    on_it = sorted(on_it, key=_size, reverse=True)
    off = [item.name for item in part.items if item not in on_it]
    measure = part.judged_by
    each = [f"{i.name} ({size(_size(i))}, {MEASURES[measure]} {num(i[measure].value or 0)})" for i in on_it]
    return Finding(
        kind="audit_frontier", severity="info",
        title=f"{len(on_it)} of {count(len(part.items), 'configuration')} are on the Pareto frontier",
        detail=f"From large to small: {listed(each, len(each))}.{_by_means(part)}",
        advice=f"Do not use {listed(off, cuts.names_listed)}: for each, another is no larger and not measurably worse."
        if off else "Every one is the best of its size: the size decides.",
        evidence=evidence(part.probe, measure, part.examples, on_it[-1][measure]),
        scopes=[item.name for item in on_it],
    )  # fmt: skip


def _by_means(part: Tried) -> str:
    """That differences were judged without intervals, and why."""
    why = part.notes.get("no_intervals")
    return f" Some differences were judged by their means alone, which chance may have ordered: {why}." if why else ""


def not_finite(part: Configurations, cuts: Cuts) -> Finding | None:
    bad = [item.name for item in part.items if nonfinite(item["loss"].reason) or nonfinite(item["kl"].reason)]
    if not bad:
        return None
    return Finding(
        kind="audit_bits_not_finite", severity="warning",
        title=f"{count(len(bad), 'configuration')} {'gives' if len(bad) == 1 else 'give'} outputs that are not finite",
        detail=f"Loss or KL of {listed(bad, cuts.names_listed)} is NaN or infinite{part.on}.",
        advice="Do not use these widths; look at the most sensitive unit for where the outputs break.",
        evidence=Evidence(probe=part.probe, name="kl", n=part.examples or len(part.items)), scopes=bad,
    )  # fmt: skip


def not_additive(part: Configurations, cuts: Cuts) -> Finding | None:
    ratios = {item.name: r for item in part.items if (r := item["additivity"].value) is not None and r > 0}
    off = [name for name, ratio in ratios.items() if abs(np.log(ratio)) > np.log(cuts.audit_additivity)]
    worst = part.named(max(off, key=lambda name: abs(np.log(ratios[name])), default=None))
    if worst is None:
        return None
    ratio = ratios[worst.name]
    more = f"{num(1 / ratio)} times more than" if ratio < 1 else f"{num(ratio)} times less than"
    return Finding(
        kind="audit_not_additive", severity="info",
        title=f"Units quantised together do other damage than alone in {len(off)} of "
        f"{count(len(ratios), 'configuration')}",
        detail=f"The farthest off, {worst.name}, has a {MEASURES[part.judged_by]} of "
        f"{interval_text(worst[part.judged_by])}{part.on}, {more} the sum over its units alone "
        f"(ratio {num(ratio)}).",
        advice="Do not choose widths by the sensitivities of single units alone: try the whole configuration, as was "
        "done here.",
        evidence=evidence(part.probe, "additivity", part.examples, worst["additivity"]), scopes=off,
    )  # fmt: skip


def sensitive(part: Sensitivity, cuts: Cuts) -> Finding | None:
    """The most and least sensitive units, at the fewest bits at which all of them have a number."""
    measure = part.judged_by
    for bits in sorted(part.bits):
        costs = {unit.name: v for unit in part.units if (v := unit.cost.get(bits, NONE).value) is not None}
        if len(costs) == len(part.units) > 1:
            break
    else:
        return None
    ordered = sorted(costs, key=lambda name: -costs[name])
    if np.median([*costs.values()]) * STANDS_OUT > costs[ordered[0]]:
        return None
    most, least, median, total = ordered[0], ordered[-1], float(np.median([*costs.values()])), sum(costs.values())
    sums: dict[str, float] = {}
    for unit in part.units:
        sums[unit.part] = sums.get(unit.part, 0) + costs[unit.name]
    shares = [f"{p} {percent(n / total)}" for p, n in sums.items()] if total > 0 else []
    split = f" Of the sum over units: {listed(shares, len(shares))}." if shares else ""
    times = f", {num(costs[most] / median)} times the median unit's {num(median)}" if median > 0 else ""
    return Finding(
        kind="audit_sensitive_units", severity="info", title=f"The most sensitive unit at {bits} bits is {most}",
        detail=f"Alone at {bits} bits, it has a {MEASURES[measure]} of {num(costs[most])}{times}; the least sensitive, "
        f"{least}, has {num(costs[least])}{part.on}.{split}",
        advice=f"Give more bits to {listed(ordered[: min(3, len(ordered) // 2)], cuts.names_listed)} first, and fewer "
        f"to {least}.",
        evidence=Evidence(probe=part.probe, name=measure, n=part.examples or len(costs), value=costs[most]),
        scopes=ordered[:3],
    )  # fmt: skip
