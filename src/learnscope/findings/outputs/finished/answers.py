"""How many questions an audited model answers right, and which classes it gets wrong more often than others."""

from __future__ import annotations

from learnscope.reading.audit_answers import Quality, TaskNumbers, Tasks
from learnscope.reading.audit_numbers import NONE, Number, evidence, interval_text
from learnscope.reading.words import count, listed, num, percent
from learnscope.record import Finding


def tasks(part: Tasks) -> list[Finding]:
    return [answered(part, task) for task in part.tasks]


def answered(part: Tasks, task: TaskNumbers) -> Finding:
    """The accuracy on a set of questions, beside guessing where that is possible."""
    if not task.measured:
        missing = task.acc if task.acc.value is None else task.exact_match
        return Finding(
            kind="audit_task_not_measured", severity="info", title=f"{task.name} was not asked: {missing.reason}",
            detail=f"None of {count(task.questions or 0, 'question')} was put to the model: {missing.reason}.",
            advice="Give what is missing, or leave the task out.", evidence=evidence(part.probe, "acc", 0, NONE),
        )  # fmt: skip
    name, number = next(iter(task.measured.items()))
    others = [f"{other} {interval_text(n)}" for other, n in task.measured.items() if other != name]
    detail = f"{name} {interval_text(number)} of {count(task.questions or 0, 'question')}."
    detail += f" By length: {listed(others, len(others))}." if others else ""
    chance, low = task.chance.value, number.low
    title, advice = f"{task.name}: {percent(number.value or 0.0)} right", _tell(number)
    if chance is not None and low is not None and low <= chance:
        title += f", which cannot be told from guessing, {percent(chance)}"
        advice = "Ask more questions before models are compared by it, or easier ones."
    elif chance is not None:
        detail += f" Guessing gets {percent(chance)}."
    return Finding(
        kind="audit_task", severity="info", title=title, detail=detail, advice=advice,
        evidence=evidence(part.probe, name, task.questions, number), scopes=[task.name],
    )  # fmt: skip


def _tell(number: Number) -> str:
    half = 0.0 if number.interval is None else (number.interval[1] - number.interval[0]) / 2
    return (
        f"Another model on other questions differs by chance by up to about {num(half)}; four times as many halve that."
    )


def weak_classes(part: Quality) -> Finding | None:
    """Classes whose accuracy is below that of all, by more than chance explains."""
    overall, classes = part.accuracy, part.by_class
    if overall.interval is None or len(classes) < 2:
        return None
    weak = {name: n for name, n in classes.items() if n.high is not None and n.high < overall.interval[0]}
    if not weak:
        return None
    worst = min(weak, key=lambda name: weak[name].value or 0.0)
    said = [f"{name} {interval_text(number)}" for name, number in sorted(weak.items(), key=lambda i: i[1].value or 0.0)]
    return Finding(
        kind="audit_weak_classes", severity="info", scopes=list(weak),
        title=f"Class {worst} is right in {percent(weak[worst].value or 0.0)} of its examples, all together in "
        f"{percent(overall.value or 0.0)}",
        detail=f"{count(len(weak), 'class', 'classes')} of {len(classes)} below the accuracy of all, "
        f"{interval_text(overall)}, by more than chance: {listed(said, 6)}.",
        advice="Look at what these are taken for, and at how many of them were trained on.",
        evidence=evidence(part.probe, "class_accuracy", part.n_examples, weak[worst]),
    )  # fmt: skip
