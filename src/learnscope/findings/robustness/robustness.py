"""What attacks, noise and damaged inputs do to an audited model, and whether the attacks can be believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress, takewhile

from learnscope.findings import analysis, not_an_audit
from learnscope.findings.robustness.language import curvature, prompted
from learnscope.findings.robustness.masking import strongest
from learnscope.reading.audit import read_audit
from learnscope.reading.audit_numbers import (
    DISTURBED,
    NONE,
    Number,
    at_level,
    evidence,
    interval_text,
)
from learnscope.reading.audit_parts import Attack, Attacks, Level, Levels, Transfer
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Evidence, Finding
from learnscope.store.reader import RunReader

FAILURES = {
    "pgd_at_least_fgsm": "PGD is weaker than FGSM, which takes one of its steps",
    "monotone_in_epsilon": "a larger epsilon does not always do more damage",
    "monotone_in_steps": "more steps do not do more damage",
    "random_below_attack": "random noise of the same size does more damage than the attack",
}
"""What each flag means if it is 0."""


@analysis(place=190, check="robustness (audit)", unless=not_an_audit)
def audit_robustness(reader: RunReader, cuts: Cuts) -> list[Finding]:
    audit = read_audit(reader)
    found: list[Finding | None] = []
    if audit.prompts is not None:
        found.append(prompted(audit.prompts, cuts))
    if audit.attacks is not None and audit.attacks.notes.get("target") == "embeddings":
        found.append(curvature(audit.attacks))
    elif audit.attacks is not None:
        found += [gap(audit.attacks, cuts), masked(audit.attacks, cuts)]
    if audit.autoattack is not None:
        found += strongest(audit.autoattack)
    if (noise := audit.noise) is not None:
        found += [tolerance(noise, name, levels, cuts) for name, levels in noise.by_name().items()]
    if (damage := audit.perturbations) is not None:
        found += [perturbed(damage, name, levels) for name, levels in damage.by_name().items()]
    if audit.transfer is not None:
        found.append(transfer(audit.transfer))
    return [finding for finding in found if finding is not None]


def within(number: Number, most: float) -> bool | None:
    """Whether a number is at most a threshold; None if that cannot be told, as without an interval."""
    if number.interval is None:
        return None
    low, high = number.interval
    return True if high <= most else False if low > most else None


def gap(part: Attacks, cuts: Cuts) -> Finding:
    most = num(cuts.audit_robustness_gap)
    if part.gap.value is None:
        return Finding(
            kind="audit_gap_not_measured", severity="info", title="The robustness gap was not measured",
            detail=f"There is none: {part.gap.reason}.", advice="Measure accuracy under attack on data with labels.",
            evidence=Evidence(probe=part.probe, name="robustness_gap", n=part.examples or 0),
        )  # fmt: skip
    detail = f"The gap is {interval_text(part.gap)}{part.on}"
    robust, nothing = within(part.gap, cuts.audit_robustness_gap), nothing_to_lose(part, cuts)
    if nothing is not None:
        verdict = f"which says nothing: {nothing}"
        detail += "; a gap cannot be larger than the accuracy that attacks begin with."
        advice = "Compare the losses under attack instead, or attack data that the model is good at."
    else:
        detail += f".{_worst_case(part)}"
        if robust is None:
            verdict = f"and whether that is at most {most} cannot be told"
            advice = (
                "Attack more examples: the interval shrinks with their square root."
                if part.gap.interval
                else ("Attack more examples (examples=): there is no interval.")
            )
        elif not robust:
            verdict = f"above {most}: attacks take more accuracy than that"
            advice = "Train on attacked inputs, or keep inputs of strangers away from it."
        elif masked(part, cuts) is not None:
            verdict = f"at most {most}, but gradient masking is suspected"
            advice = "Believe it only when the attacks can be believed: see the signs of gradient masking."
        else:
            verdict = f"at most {most}: the model withstands these attacks"
            advice = "It holds for these attacks only, at these sizes; see the flags beside them."
    # the title says at once if it rests on less than was given, or on no data at all
    partly = part.given is not None or part.own_samples
    stated = f"{interval_text(part.gap)}{part.on}" if partly else num(part.gap.value)
    return Finding(
        kind="audit_robustness_gap", severity="warning" if nothing is None and robust is False else "info",
        title=f"The robustness gap is {stated}, {verdict}", detail=detail, advice=advice,
        evidence=evidence(part.probe, "robustness_gap", part.examples, part.gap),
    )  # fmt: skip


def _worst_case(part: Attacks) -> str:
    worst = worst_attack(part)
    if worst is None:
        return ""
    clean = f"from {interval_text(part.clean.accuracy)} " if part.clean is not None else ""
    attack = f"{worst.name.upper()} with {worst.norm} epsilon {num(worst.epsilon)} ({worst.unit})"
    where = f"{attack} on the {part.notes.get('target', 'inputs')}"
    return f" The worst of the largest, {where}, takes the accuracy {clean}to {interval_text(worst.accuracy)}."


def nothing_to_lose(part: Attacks, cuts: Cuts) -> str | None:
    """Why any model's gap would be small: no attack was larger than 0, or the clean accuracy is that low already."""
    if not any(attack.epsilon > 0 for attack in part.attacks):
        return "every epsilon was 0"
    clean = None if part.clean is None else part.clean.accuracy.value
    if clean is not None and clean <= cuts.audit_robustness_gap:
        return f"clean accuracy is {num(clean)}, at most {num(cuts.audit_robustness_gap)} itself"
    return None


def worst_attack(part: Attacks) -> Attack | None:
    """The one that leaves the least accuracy, of those of the largest epsilon in each norm and unit."""
    largest: dict[tuple[str, str], float] = {}
    attacks = [attack for attack in part.attacks if attack.name != "random"]
    for attack in attacks:
        largest[attack.norm, attack.unit] = max(attack.epsilon, largest.get((attack.norm, attack.unit), 0.0))
    known = [a for a in attacks if a.epsilon == largest[a.norm, a.unit] and a.accuracy.value is not None]
    return min(known, key=lambda attack: attack.accuracy.value or 0.0, default=None)


def masked(part: Attacks, cuts: Cuts) -> Finding | None:
    """Signs that the attacks failed, from which no robustness follows."""
    failed = [name for name in FAILURES if part[name].value == 0]
    doubts = [FAILURES[name] for name in failed]
    shares = [a.zero_gradient_share.value for a in part.attacks if a.zero_gradient_share.value is not None]
    zeros = max(shares, default=0.0)
    if zeros >= cuts.audit_zero_gradients:
        doubts.insert(0, f"up to {percent(zeros)} of the gradients are exactly zero")
    if not doubts:
        return None
    unknown = [f"{name} ({part[name].reason})" for name in FAILURES if part[name].value is None]
    name, value = (failed[0], Number(0.0)) if failed else ("zero_gradient_share", Number(zeros))
    return Finding(
        kind="audit_gradient_masking", severity="warning",
        title="The attacks may have failed rather than the model held: gradient masking is suspected",
        detail=f"Signs{part.on}: {listed(doubts, len(doubts))}."
        + (f" Not measured: {listed(unknown, len(unknown))}." if unknown else ""),
        advice="Do not take the robustness gap for robustness: attack with more steps and restarts first.",
        evidence=evidence(part.probe, name, part.examples, value),
    )  # fmt: skip


def tolerance(part: Levels, name: str, levels: Sequence[Level], cuts: Cuts) -> Finding:
    """The strongest noise up to which the outputs stay within the threshold at all levels."""
    ordered = [level for level in levels if level.kl.value is not None]
    if not ordered:
        return _not_judged(part, name, "kl_mean", levels[0].kl.reason)
    near = list(takewhile(lambda level: _end(level.kl, -1) <= cuts.audit_kl, ordered))
    what, most = DISTURBED.get(name, (name, ""))[0], num(cuts.audit_kl)
    strongest, shown = ordered[-1], near[-1] if near else ordered[0]
    at = at_level(name, shown.level)
    if near:
        reach = "down to" if name == "quantisation_noise" else "up to"
        title = f"The model stays within a KL of {most} under {what} {reach} {at}"
    else:
        title = f"The model does not stay within a KL of {most} under {what} of {at}"
    detail = f"Mean KL at {at}: {interval_text(shown.kl)} over {count(shown.seeds or 0, 'seed')}."
    if strongest is not shown:
        detail += f" At {at_level(name, strongest.level)}: {interval_text(strongest.kl)}"
        accuracy = strongest.accuracy
        detail += f", accuracy {interval_text(accuracy)}." if accuracy.value is not None else "."
    if len(near) == len(ordered):
        advice = "No breaking point in the tested range: stronger noise would show it."
    elif near:
        advice = f"The next level, {at_level(name, ordered[len(near)].level)}, is beyond."
    else:
        advice = "Weaker levels would show where it begins."
    return Finding(
        kind=f"audit_{name}", severity="info", title=title, detail=detail, advice=advice,
        evidence=evidence(part.probe, "kl_mean", shown.seeds, shown.kl),
    )  # fmt: skip


def _not_judged(part: Levels, name: str, number: str, why: str | None) -> Finding:
    return Finding(
        kind=f"audit_{name}_not_judged", severity="info", title=f"Not judged: {DISTURBED.get(name, (name, ''))[0]}",
        detail=f"The reason: {why or 'not measured'}.", advice=f"Read the numbers of {part.probe} themselves.",
        evidence=Evidence(probe=part.probe, name=number, n=part.examples or 0),
    )  # fmt: skip


def perturbed(part: Levels, name: str, levels: Sequence[Level]) -> Finding:
    """What damaged inputs cost, and from which level on that is more than chance."""
    measure = "accuracy" if any(level.accuracy.value is not None for level in levels) else "loss"
    ordered = [level for level in levels if getattr(level, measure).value is not None]
    clean = None if part.clean is None else getattr(part.clean, measure).value
    if not ordered or clean is None:
        return _not_judged(part, name, f"{measure}_mean", "there is no number on clean inputs to compare with")
    sign = -1 if measure == "accuracy" else 1
    hurt = [sign * (_end(getattr(level, measure), sign) - clean) > 0 for level in ordered]
    strongest, what = ordered[-1], DISTURBED.get(name, (name, ""))[0]
    last: Number = getattr(strongest, measure)
    changed = strongest.changed.value
    detail = f"From {num(clean)} on clean inputs to {interval_text(last)} at {at_level(name, strongest.level)}"
    detail += f" ({percent(changed)} of the inputs changed)" if changed is not None else ""
    detail += f", over {count(strongest.seeds or 0, 'seed')}{part.on}."
    moved = sign * ((last.value or 0.0) - clean)
    better = -sign * (_end(last, -sign) - clean) > 0
    doubt = "" if hurt[-1] or better else ", which cannot be told from chance"
    return Finding(
        kind=f"audit_{name}", severity="info",
        title=f"{what.capitalize()} of {at_level(name, strongest.level)} change the {measure} by "
        f"{num(abs(moved))}{', for the better' if better else doubt}",
        detail=detail, advice=_harm(name, measure, ordered, hurt),
        evidence=evidence(part.probe, f"{measure}_mean", strongest.seeds, last),
    )  # fmt: skip


def _harm(name: str, measure: str, ordered: Sequence[Level], hurt: Sequence[bool]) -> str:
    """From which level on all are worse than clean inputs, or which of them are."""
    worse = f"The {measure} is worse than on clean inputs by more than the spread of the seeds"
    if not any(hurt):
        return f"{worse} at no level that was tried."
    first = next((place for place in range(len(hurt)) if all(hurt[place:])), None)
    if first is None:
        at = listed([at_level(name, level.level) for level in compress(ordered, hurt)], len(ordered))
        return f"{worse} at {at}, but not at stronger levels: try more seeds before acting on it."
    return (
        f"{worse} from {at_level(name, ordered[first].level)} on: inputs damaged as much need to be cleaned, or "
        "trained on."
    )


def _end(number: Number, sign: int) -> float:
    """The lower end of the interval (sign 1) or the upper one (−1); without an interval the number itself."""
    end = number.low if sign > 0 else number.high
    return end if end is not None else number.value if number.value is not None else math.nan


def transfer(part: Transfer) -> Finding | None:
    """Whether quantising changes robustness: attacks made at each width, and those made on the model as stored."""
    before = part.accuracy.get((0, 0), NONE)
    widths = sorted({bits for _, bits in part.accuracy if bits != 0}, reverse=True)
    changes = part.changes
    if before.value is None or not changes:
        return None
    moved = [bits for bits, change in changes.items() if (i := change.interval) is not None and not i[0] <= 0 <= i[1]]
    most = max(changes.values(), key=lambda change: abs(change.value or 0.0))
    said = [f"{interval_text(change, sign=True)} at {bits} bits" for bits, change in changes.items()]
    accuracy = {bits: part.accuracy[0, bits] for bits in widths if (0, bits) in part.accuracy}
    carried = [f"{interval_text(number)} at {bits} bits" for bits, number in accuracy.items()]
    clean = [f"{interval_text(n)} {'as stored' if b == 0 else f'at {b} bits'}" for b, n in part.clean.items()]
    more = f" Without an attack: {listed(clean, len(clean))}." if clean else ""
    more += f" Attacks made on the model as stored leave {listed(carried, len(carried))}." if carried else ""
    unknown = all(change.interval is None for change in changes.values())
    title, advice = (
        "Quantising does not measurably change the accuracy under attack",
        "What was measured on the model as stored can be taken for these widths, as far as the intervals go.",
    )
    if unknown:
        title = "Whether quantising changes the accuracy under attack cannot be told"
        advice = "Attack more examples (examples=): there are no intervals to tell changes from chance."
    elif moved:
        title = f"Quantising changes the accuracy under attack at {listed([f'{bits}' for bits in moved], 6)} bits"
        advice = "Attack the model that is deployed, not the one it was made from."
    return Finding(
        kind="audit_quantised_robustness", severity="info", title=title,
        detail=f"Accuracy under PGD made on the same weights, beside {num(before.value)} as stored: "
        f"{listed(said, len(said))}{part.on}.{more}",
        advice=advice, evidence=evidence(part.probe, "accuracy", part.examples, most),
    )  # fmt: skip
