"""What AutoAttack shows of a classifier of images that PGD alone does not."""

from __future__ import annotations

from learnscope.reading.audit_numbers import evidence, interval_text
from learnscope.reading.audit_parts import AutoAttacks
from learnscope.reading.words import listed
from learnscope.record import Finding

MASKED = {
    "square_no_better": "Square, which needs no gradient, breaks more images than attacks that follow one",
    "unbounded_breaks": "an attack that may change the images to anything still leaves some right",
    "more_steps_no_weaker": "four times the steps do less damage",
    "falls_with_epsilon": "the accuracy rises with the size of the attack",
}
"""What each flag means if it is 0."""


def strongest(part: AutoAttacks) -> list[Finding]:
    """The gap under AutoAttack; and a warning if gradients are masked, or PGD alone overlooks something."""
    if part.gap.value is None:
        return []
    failed = [text for name, text in MASKED.items() if part[name].value == 0]
    overlooked = part.pgd_gap.low is not None and part.pgd_gap.low > 0
    missing = part.notes.get("left_out") or {}
    not_run = f" Not run: {listed([f'{name} ({why})' for name, why in missing.items()], 3)}." if missing else ""
    said = [text.rstrip(".!") for text in part.notes.get("said") or []]
    warned = f" The package warns: {listed(said, 3)}." if said else ""
    found = [
        Finding(
            kind="audit_autoattack", severity="info",
            title=f"AutoAttack takes {interval_text(part.gap)} of the accuracy",
            detail=f"At the largest epsilon{part.on}. The accuracy under PGD of {part.notes.get('steps')} steps is "
            f"{interval_text(part.pgd_gap, sign=True)} higher.{not_run}{warned}",
            advice="Tell this number rather than PGD's: it is of several attacks, one without gradients.",
            evidence=evidence(part.probe, "robustness_gap", part.examples, part.gap),
        )
    ]  # fmt: skip
    if failed or overlooked:
        why = [*failed, *(["AutoAttack breaks more images than PGD, by more than chance"] if overlooked else [])]
        found.append(Finding(
            kind="audit_masked_gradients", severity="warning",
            title="The model is less robust than attacks by gradients make it look",
            detail=f"{'; '.join(why)}. Gradients that are zero, rounded, random or saturated hide the way to a wrong "
            "answer, and do not block it.",
            advice="Judge by AutoAttack's accuracy, look for saturated or rounded activations, and attack without "
            "gradients or through a smooth stand-in.",
            evidence=evidence(part.probe, "pgd_gap", part.examples, part.pgd_gap),
        ))  # fmt: skip
    return found
