"""Which bit widths an audited model takes, what they cost, and which weights mind most."""

from __future__ import annotations

import numpy as np

from learnscope.findings.bits.exported_speed import exported
from learnscope.findings.registry import analysis
from learnscope.reading.audit import Audit, read_audit
from learnscope.reading.audit_parts import Configuration, Configurations, Optimum, Sensitivity
from learnscope.reading.audit_words import evidence, on, size, told, widths
from learnscope.reading.cuts import Cuts
from learnscope.reading.gather import NONFINITE
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

MEASURES = {"kl": "mean KL", "mse": "mean squared error"}


@analysis(place=180)
def audit_bits(reader: RunReader, cuts: Cuts) -> list[Finding]:
    audit = read_audit(reader)
    found: list[Finding | None] = []
    if audit.optimum is not None:
        found += [recommended(audit.optimum), mixed_or_uniform(audit.optimum)]
    if audit.configurations is not None:
        every = audit.configurations
        found += [smallest_near(every, cuts), frontier(every, cuts), not_finite(every, cuts), not_additive(every, cuts)]
    if audit.sensitivity is not None:
        found.append(sensitive(audit.sensitivity, cuts))
    if audit.exported is not None:
        found.append(exported(audit.exported))
    return [finding for finding in found if finding is not None]


def recommended_configuration(audit: Audit) -> Configuration | None:
    """What the search for the best widths recommends, as it was tried on held-out data."""
    part = audit.optimum
    return None if part is None or part.recommended_name is None else part.named(part.recommended_name)


def damage(one: Configuration) -> str:
    """Whether the loss grew, told apart from chance."""
    change = one["loss_change"]
    if change.value is None:
        return "The change of the loss was not measured."
    if change.interval is None:
        return f"The loss changes by {told(change, sign=True)}, without an interval."
    low, high = change.interval
    if low > 0:
        return f"The loss rises, {told(change, sign=True)}: more than chance."
    if high < 0:
        return f"The loss falls, {told(change, sign=True)}: more than chance."
    return f"The loss changes by {told(change, sign=True)}, which cannot be told from none."


def unseen(part: Optimum) -> str:
    """Whether the examples are others than those that the widths were chosen on."""
    if part.notes.get("held_out") is False:
        return "that the widths were also chosen on, for there are no others"
    if part.notes.get("sensitivities") == "file":
        return "of which it is not known whether the widths were chosen on them"
    return "that the choice did not see"


def _made_of(one: Configuration) -> str:
    if one["packed_bytes"].value is None or one["original_bytes"].value is None:
        return ""
    smaller = one["compression"].value or one["original_bytes"].value / one["packed_bytes"].value
    return (
        f"{size(one['packed_bytes'].value)} of {size(one['original_bytes'].value)} ({num(smaller)} times smaller, "
        f"{num(one['model_bits'].value)} bits a weight in the whole model)"
        if one["model_bits"].value is not None
        else f"{size(one['packed_bytes'].value)} of {size(one['original_bytes'].value)} ({num(smaller)} times smaller)"
    )


def recommended(part: Optimum) -> Finding | None:
    one = None if part.recommended_name is None else part.named(part.recommended_name)
    if one is None:
        return None
    measure = part.judged_by
    bits = widths(part.recommended) if part.recommended else "all as stored"
    grew = one["loss_change"].interval
    return Finding(
        kind="audit_recommended_bits", severity="info",
        title=f"Recommended widths: {bits}" + (f", {_made_of(one)}" if _made_of(one) else ""),
        detail=f"With {one.name}, the {MEASURES[measure]} to the model itself is {told(one[measure])}"
        f"{on(part.examples)} {unseen(part)}. {damage(one)}",
        advice="The loss rises measurably: take it for the size only if that is worth it, else give a larger budget."
        if grew is not None and grew[0] > 0
        else "Write the model with them: learnscope audit --export FILE, or export(FILE) of a BitWidthAnalyzer."
        if part.recommended
        else "The budget has room for the model as it is: ask for a smaller one.",
        evidence=evidence(part.probe, measure, part.examples, one[measure]), scopes=list(part.recommended),
    )  # fmt: skip


def mixed_or_uniform(part: Optimum) -> Finding | None:
    """Whether the trouble of mixing widths pays, on data that the mix was not chosen on."""
    mixed, measure = part.named("optimal"), part.judged_by
    rivals = [one for one in part.items if one.name.startswith("uniform_") and one[measure].value is not None]
    if mixed is None or mixed[measure].value is None or not rivals or part.mixed_wins.value is None:
        return None
    chosen = next((one for one in rivals if one.name == part.recommended_name), None)
    limit = part["budget_bytes"] if part["budget_bytes"].value else mixed["packed_bytes"]
    # a larger one may well be better, and is no rival
    fitting = [one for one in rivals if (one["packed_bytes"].value or 0.0) <= (limit.value or np.inf)]
    wins = part.mixed_wins.value == 1
    if not fitting and wins:
        return None
    best = chosen or min(fitting or rivals, key=lambda one: one[measure].value or 0.0)
    sizes = [f"{size(one['packed_bytes'].value)}" if one["packed_bytes"].value is not None else "n/a"
             for one in (mixed, best)]  # fmt: skip
    return Finding(
        kind="audit_mixed_wins" if wins else "audit_uniform_as_good", severity="info",
        title=f"Mixed widths are better than {best.name}" if wins else f"Mixed widths are no better than {best.name}",
        detail=f"The best mix has a {MEASURES[measure]} of {told(mixed[measure])} in {sizes[0]}, {best.name} "
        f"{told(best[measure])} in {sizes[1]}{on(part.examples)} {unseen(part)}.",
        advice=f"Use the mix: {widths(part.chosen)}." if wins
        else f"Use {best.name}: one width for all is simpler.",
        evidence=evidence(part.probe, measure, part.examples, mixed[measure]),
    )  # fmt: skip


def smallest_near(part: Configurations, cuts: Cuts) -> Finding | None:
    """The smallest configuration that is still the model itself, at the upper end of the interval."""
    if part.judged_by != "kl":
        return None
    tried = [one for one in part.items if one.name != "original" and one["packed_bytes"].value is not None]
    if not tried:
        return None

    def worst(one: Configuration) -> float:
        kl = one["kl"]
        return np.inf if kl.value is None else kl.high if kl.high is not None else kl.value

    near = [one for one in tried if worst(one) <= cuts.audit_kl]
    if not near:
        closest = min(tried, key=worst)
        return Finding(
            kind="audit_no_width_near", severity="warning",
            title=f"None of {count(len(tried), 'configuration')} stays within a KL of {num(cuts.audit_kl)}",
            detail=f"The closest, {closest.name}, has a mean KL of {told(closest['kl'])}{on(part.examples)}. "
            f"{damage(closest)}",
            advice="Leave the most sensitive weights at more bits, or use groups of weights with scales of their own.",
            evidence=evidence(part.probe, "kl", part.examples, closest["kl"]), scopes=[closest.name],
        )  # fmt: skip
    one = min(near, key=lambda one: one["packed_bytes"].value or 0.0)
    return Finding(
        kind="audit_smallest_near", severity="info",
        title=f"The smallest configuration within a KL of {num(cuts.audit_kl)} is {one.name}: {_made_of(one)}",
        detail=f"Its mean KL to the model itself is {told(one['kl'])}{on(part.examples)}. {damage(one)}",
        advice=f"Of {count(len(tried), 'configuration')} tried, {len(tried) - len(near)} are further off: "
        f"audit_kl in Cuts moves what counts as near.",
        evidence=evidence(part.probe, "kl", part.examples, one["kl"]), scopes=[one.name],
    )  # fmt: skip


def frontier(part: Configurations, cuts: Cuts) -> Finding | None:
    on_it = [one for one in part.items if one["on_frontier"].value == 1 and one["packed_bytes"].value is not None]
    if not on_it or len(part.items) < 3:
        return None
    on_it = sorted(on_it, key=lambda one: -(one["packed_bytes"].value or 0.0))
    off = [one.name for one in part.items if one not in on_it]
    measure = part.judged_by
    last = on_it[-1]
    return Finding(
        kind="audit_frontier", severity="info",
        title=f"{len(on_it)} of {count(len(part.items), 'configuration')} are on the Pareto frontier",
        detail="From large to small: " + listed([
            f"{one.name} ({size(one['packed_bytes'].value or 0)}, {MEASURES[measure]} {num(one[measure].value or 0)})"
            for one in on_it], len(on_it)) + ".",
        advice=f"Do not use {listed(off, cuts.names_listed)}: for each, another is no larger and not measurably worse."
        if off else "Every one is the best of its size: the size decides.",
        evidence=evidence(part.probe, measure, part.examples, last[measure]), scopes=[one.name for one in on_it],
    )  # fmt: skip


def not_finite(part: Configurations, cuts: Cuts) -> Finding | None:
    bad = [one.name for one in part.items if one["loss"].why in NONFINITE or one["kl"].why in NONFINITE]
    if not bad:
        return None
    return Finding(
        kind="audit_bits_not_finite", severity="warning",
        title=f"{count(len(bad), 'configuration')} {'gives' if len(bad) == 1 else 'give'} outputs that are not finite",
        detail=f"Loss or KL of {listed(bad, cuts.names_listed)} is NaN or infinite{on(part.examples)}.",
        advice="Do not use these widths; look at the most sensitive unit for where the outputs break.",
        evidence=Evidence(probe=part.probe, name="kl", n=part.examples or len(part.items)), scopes=bad,
    )  # fmt: skip


def not_additive(part: Configurations, cuts: Cuts) -> Finding | None:
    known = [one for one in part.items if one["additivity"].value is not None and one["additivity"].value > 0]
    off = [one for one in known if abs(np.log(one["additivity"].value or 1.0)) > np.log(cuts.audit_additivity)]
    if not off:
        return None
    worst = max(off, key=lambda one: abs(np.log(one["additivity"].value or 1.0)))
    ratio = worst["additivity"].value or 1.0
    more = f"{num(1 / ratio)} times more than" if ratio < 1 else f"{num(ratio)} times less than"
    return Finding(
        kind="audit_not_additive", severity="info",
        title=f"Units quantised together do other damage than alone in {len(off)} of "
        f"{count(len(known), 'configuration')}",
        detail=f"The farthest off, {worst.name}, has a {MEASURES[part.judged_by]} of {told(worst[part.judged_by])}"
        f"{on(part.examples)}, {more} the sum over its units alone (ratio {num(ratio)}).",
        advice="Do not choose widths by the sensitivities of single units alone: try the whole configuration, as was "
        "done here.",
        evidence=evidence(part.probe, "additivity", part.examples, worst["additivity"]),
        scopes=[one.name for one in off],
    )  # fmt: skip


def sensitive(part: Sensitivity, cuts: Cuts) -> Finding | None:
    """The units that mind most and least, at the fewest bits at which all of them have a number."""
    measure = part.judged_by
    for bits in sorted(part.bits):
        cost = {unit.name: unit.cost[bits].value for unit in part.units if bits in unit.cost}
        known = {name: value for name, value in cost.items() if value is not None}
        if len(known) == len(part.units) and len(known) > 1:
            break
    else:
        return None
    ordered = sorted(known, key=lambda name: -known[name])
    most, least, median = ordered[0], ordered[-1], float(np.median(list(known.values())))
    total = sum(known.values())
    kinds = {unit.name: unit.part for unit in part.units}
    shares = {p: sum(known[n] for n in known if kinds[n] == p) / total for p in dict.fromkeys(kinds.values())} if (
        total > 0) else {}  # fmt: skip
    split = listed([f"{p} {percent(share)}" for p, share in shares.items()], len(shares))
    split = f" Of the sum over units: {split}." if split else ""
    times = f", {num(known[most] / median)} times the median unit's {num(median)}" if median > 0 else ""
    return Finding(
        kind="audit_sensitive_units", severity="info", title=f"The most sensitive unit at {bits} bits is {most}",
        detail=f"Alone at {bits} bits, it has a {MEASURES[measure]} of {num(known[most])}{times}; the least sensitive, "
        f"{least}, has {num(known[least])}{on(part.examples)}.{split}",
        advice=f"Give more bits to {listed(ordered[: min(3, len(ordered) // 2)], cuts.names_listed)} first, and fewer "
        f"to {least}.",
        evidence=Evidence(probe=part.probe, name=measure, n=part.examples or len(known), value=known[most]),
        scopes=ordered[:3],
    )  # fmt: skip
