"""What changed prompts do to a language model, and how curved its loss is around the embeddings."""

from __future__ import annotations

from learnscope.reading.audit_answers import Prompts
from learnscope.reading.audit_numbers import DISTURBED, NONE, evidence, interval_text, signed
from learnscope.reading.audit_parts import Attacks
from learnscope.reading.cuts import Cuts
from learnscope.reading.words import listed, num, percent
from learnscope.record import Finding


def prompted(part: Prompts, cuts: Cuts) -> Finding | None:
    """Which change that anybody could send takes the most accuracy, at the smallest share that was tried."""
    worst = part.worst
    if worst is None:
        return None
    number, what = worst.accuracy_change, DISTURBED.get(worst.name, (worst.name, ""))[0]
    others = [
        f"{DISTURBED.get(e.name, (e.name, ''))[0]} {interval_text(e.accuracy_change, sign=True)}"
        for e in part.changes
        if e.level == worst.level and e.name != worst.name
    ]
    far = [e for e in part.changes if e.name == worst.name and e.level > worst.level]
    detail = f"Accuracy {interval_text(number, sign=True)}, loss {interval_text(worst.loss_change, sign=True)}, KL "
    detail += f"{interval_text(worst.kl)}{part.on}, at the positions after {part.notes.get('changed', 'the prompt')}."
    detail += f" Others at {percent(worst.level)}: {listed(others, len(others))}." if others else ""
    detail += "".join(f" At {percent(e.level)}: {interval_text(e.accuracy_change, sign=True)}." for e in far[:1])
    detail += f" Some kinds were not measured: {part.reason}." if part.reason else ""
    harmful = number.interval is not None and number.interval[1] < -cuts.audit_robustness_gap
    told = number.interval is not None and number.interval[1] < 0
    advice = (
        "Clean prompts before the model sees them, or train it on such ones."
        if harmful
        else "No more than that is lost to what a careless sender does at this share."
        if told
        else "No loss of accuracy can be told from chance at this share: try more examples or larger shares."
    )
    return Finding(
        kind="audit_prompts", severity="warning" if harmful else "info",
        title=f"Of what anybody could send, {what} in {percent(worst.level)} of the places cost the most accuracy: "
        f"{signed(number.value or 0.0)}",
        detail=detail, advice=advice, evidence=evidence(part.probe, "accuracy_change", part.examples, number),
    )  # fmt: skip


def curvature(part: Attacks) -> Finding | None:
    """How much steeper the loss is around the embeddings in its worst direction than in random ones: no verdict."""
    clean = None if part.clean is None else part.clean.loss.value
    by_size = {(attack.epsilon, attack.name): attack.loss for attack in part.attacks}
    smallest = min((e for e, name in by_size if name == "pgd" and e > 0), default=None)
    if clean is None or smallest is None or by_size[smallest, "pgd"].value is None:
        return None
    worst = (by_size[smallest, "pgd"].value or 0.0) - clean
    random = by_size.get((smallest, "random"), NONE).value
    beside = f", random ones of the same length by {num(random - clean)}" if random is not None else ""
    times = f", {num(worst / (random - clean))} times as much" if random is not None and random > clean else ""
    return Finding(
        kind="audit_embedding_curvature", severity="info",
        title=f"The worst step of {num(smallest)} of the way to another token raises the loss by {num(worst)}",
        detail=f"From {num(clean)}{part.on}{beside}{times}.",
        advice="No text makes such a step: it tells how curved the loss is around the embeddings, and is no verdict on "
        "the model. What anybody could send is under prompts.",
        evidence=evidence(part.probe, "loss", part.examples, by_size[smallest, "pgd"]),
    )  # fmt: skip
