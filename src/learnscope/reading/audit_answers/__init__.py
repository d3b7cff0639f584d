"""The parts of an audit about what a model answers: to its data, to changed prompts, and to questions."""

from __future__ import annotations

from learnscope.quantities import outputs, robustness
from learnscope.reading.audit_numbers import CountOf, Entry, Label, Number, NumberOf, Part


class Quality(Part):
    quantities = outputs.Performance
    loss, perplexity = NumberOf(outputs.Performance.loss), NumberOf(outputs.Performance.perplexity)
    accuracy = NumberOf(outputs.Performance.accuracy)
    n_examples, positions = CountOf(outputs.Performance.examples), CountOf(outputs.Performance.positions)

    @property
    def examples(self) -> int | None:
        return self.n_examples

    @property
    def by_class(self) -> dict[str, Number]:
        """Accuracy of a classifier's classes."""
        return {entry.scope: entry["class_accuracy"] for entry in self.of("class", Entry)}

    @property
    def top_k(self) -> dict[int, Number]:
        by_k = {int(k): entry["top_k_accuracy"] for entry in self.entries if (k := entry.labels.get("k"))}
        return dict(sorted(by_k.items()))


class Prompt(Entry):
    """Prompts changed in one way, by one share."""

    accuracy_change = NumberOf(robustness.PromptPerturbation.accuracy_change)
    loss_change, kl = NumberOf(robustness.PromptPerturbation.loss_change), NumberOf(robustness.PromptPerturbation.kl)
    changed, level = NumberOf(robustness.PromptPerturbation.changed_share), Label("level", 0.0)


class Prompts(Part):
    quantities = robustness.PromptPerturbation

    @property
    def changes(self) -> list[Prompt]:
        """Those that were measured, by kind and level."""
        return [entry for entry in self.of("prompt", Prompt) if entry.name != "clean" and entry.kl.value is not None]

    @property
    def worst(self) -> Prompt | None:
        """What takes the most accuracy at the smallest share that was tried."""
        weakest = min((entry.level for entry in self.changes), default=0.0)
        known = [e for e in self.changes if e.level == weakest and e.accuracy_change.value is not None]
        return min(known, key=lambda entry: entry.accuracy_change.value or 0.0, default=None)

    @property
    def reason(self) -> str | None:
        """Why some kinds were not measured."""
        return next((e.kl.reason for e in self.of("prompt", Prompt) if e.kl.value is None), None)


class TaskNumbers(Entry):
    """The accuracy on one set of questions."""

    acc, acc_norm = NumberOf(outputs.TaskAccuracy.acc), NumberOf(outputs.TaskAccuracy.acc_norm)
    acc_bytes, exact_match = NumberOf(outputs.TaskAccuracy.acc_bytes), NumberOf(outputs.TaskAccuracy.exact_match)
    chance, questions = NumberOf(outputs.TaskAccuracy.chance), CountOf(outputs.TaskAccuracy.questions)

    @property
    def measured(self) -> dict[str, Number]:
        """By its name: what there is for questions of this kind."""
        names = {
            "acc": self.acc,
            "acc_norm": self.acc_norm,
            "acc_bytes": self.acc_bytes,
            "exact_match": self.exact_match,
        }
        return {name: number for name, number in names.items() if number.value is not None}


class Tasks(Part):
    quantities = outputs.TaskAccuracy

    @property
    def tasks(self) -> list[TaskNumbers]:
        return self.of("task", TaskNumbers)
