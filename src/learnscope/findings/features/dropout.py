"""Dropout that leaves too little for anything to be learned."""

from __future__ import annotations

from learnscope.findings import analysis
from learnscope.findings.evidence import evidence_over
from learnscope.quantities.outputs import Loss
from learnscope.reading.course.chance import guessing
from learnscope.reading.course.loss_course import FEWEST, Course, loss_course
from learnscope.reading.cuts import Cuts
from learnscope.reading.held_out import held_out_loss
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Finding
from learnscope.store.reader import RunReader

HALF = 0.5
"""Share of its start that a loss has lost where a model learns in spite of its dropout."""


@analysis(place=37, check="strength of dropout", needs=[Loss.loss], at_least=FEWEST, described=["model"])
def dropout_too_strong(reader: RunReader, cuts: Cuts) -> list[Finding]:
    given = (reader.manifest.get("model") or {}).get("dropout") or {}
    heavy = {name: float(p) for name, p in given.items() if (p or 0) >= cuts.heavy_dropout}
    course = loss_course(reader)
    if not heavy or course is None or course.start.value <= 0 or _learns(reader, course):
        return []
    strongest = max(heavy.values())
    held = held_out_loss(reader).series.finite.values
    lower = len(held) and held[-1] < course.end.value
    beside = f" In eval mode, without dropout, the holdout loss is {num(float(held[-1]))}." if lower else ""
    steps = int(course.steps[0]), int(course.steps[-1])
    return [
        Finding(
            kind="dropout_too_strong",
            severity="warning",
            title=f"Dropout of {num(strongest)} leaves {percent(1 - strongest)} of what it gets: the loss hardly falls",
            detail=f"{listed(list(heavy), cuts.names_listed)} {'drops' if len(heavy) == 1 else 'drop'} up to "
            f"{percent(strongest)} of the activations at every step. The loss went from {num(course.start.value)} to "
            f"{num(course.end.value)} ({count(len(course), 'loss', 'losses')}).{beside}",
            advice="Lower p to 0.1–0.5; in torch it is the share that is dropped, not the share that is kept.",
            evidence=evidence_over(steps, course.probe, course.name, len(course), strongest),
            scopes=list(heavy),
            cause=True,
            # the few activations that are left are made 1/(1 − p) times larger, and gradients with them
            explains=["not_learning", "plateau", "labels_unrelated", "majority_guess", "worsening", "exploding",
                      "learning_rate_too_high", "zero_gradients", "dead_units", "loss_spike"],
            since=steps[0],
        )
    ]  # fmt: skip


def _learns(reader: RunReader, course: Course) -> bool:
    """In spite of it: not if the loss began far above guessing, and has only come down to that."""
    found = guessing(reader)
    return course.gained_share > HALF and not (found is not None and found.at_chance)
