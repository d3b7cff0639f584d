"""How often a language model answers questions right whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from learnscope.core.moment import Moment
from learnscope.core.probe import At, Probe
from learnscope.intervals import wilson
from learnscope.model.outputs.questions import Asker, CannotAsk, Questions, log_likelihoods, written
from learnscope.model.outputs.sampling import CannotSample, check_can_sample
from learnscope.model.robustness.token_units import vocabulary_digest
from learnscope.options import check_whole
from learnscope.quantities import Quantity
from learnscope.quantities.outputs import TaskAccuracy as Q
from learnscope.record import Column, Measurement, Table
from learnscope.task import unwrap

NO_TOKENIZER = "no tokenizer is known: the questions are texts"
CHOICES = (
    (Q.acc, Q.acc_low, Q.acc_high), (Q.acc_norm, Q.acc_norm_low, Q.acc_norm_high),
    (Q.acc_bytes, Q.acc_bytes_low, Q.acc_bytes_high),
)  # fmt: skip
WORDS = (Q.exact_match, Q.exact_match_low, Q.exact_match_high)


class TaskAccuracy(Probe):
    """Questions with known answers: multiple choice by log-likelihood, and answers in words by exact match.

    They are put as lm-eval does it: a context and a choice are encoded together and split where the tokens of the
    context end, what is longer than the model takes is cut from the left, and a generated answer is the most likely
    next token again and again, up to one of `until` or the end of a text. Answers are compared without spaces around
    them. Of equal log-likelihoods the first counts as the highest.

    `learnscope.posttrain.read_task` makes questions of a file. A tokenizer and a causal language model are needed;
    without them the numbers are missing, with the reason.
    """

    at: At = "once"
    tasks: Sequence[Any] = ()
    """`Questions`, each a task of its own."""
    until: Sequence[str] = ("\n\n",)
    """What ends an answer in words."""
    max_new_tokens: int = 64
    batch_size: int = 8

    reads_only = True  # the passes have a guard of their own
    cost = "a forward pass for each choice, and one for each token of an answer in words"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, max_new_tokens=1, batch_size=1)
        for task in self.tasks:
            if not isinstance(task, Questions):
                # a wrong value of an option, as everywhere in the package
                raise ValueError(f"TaskAccuracy(tasks=…): {task!r} is none of `posttrain.read_task`")  # noqa: TRY004
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise ValueError(f"TaskAccuracy(tasks=…): two tasks have the same name, among {', '.join(names)}")

    def open(self, moment: Moment) -> None:  # noqa: ARG002  (the contract's)
        if not self.tasks:
            raise ValueError("TaskAccuracy(tasks=()): there is nothing to ask; give tasks of `posttrain.read_task`")

    def measure(self, moment: Moment) -> Measurement:
        asker, why_not = _asker(moment)
        tables = []
        for task in moment.track(self.tasks, "questions"):
            result: dict[str, Any] = {"reason": why_not}
            if asker is not None:
                key = {
                    "what": f"questions: {task.digest}", "vocabulary": vocabulary_digest(asker.tokenizer),
                    "until": list(self.until), "most": self.max_new_tokens,
                }  # fmt: skip
                result = moment.remember(key, partial(self._asked, asker, task))
            tables.append(Table("task", [task.name], _columns(task, result)))
        return Measurement(tables)

    def _asked(self, asker: Asker, task: Questions) -> dict[str, Any]:
        try:
            return self._chosen(asker, task) if task.choose else self._written(asker, task)
        except CannotAsk as error:
            return {"reason": str(error)}

    def _chosen(self, asker: Asker, task: Questions) -> dict[str, Any]:
        """Of each question, by each measure, whether the right choice is first."""
        pairs = [asker.pair(row["context"], task.delimiter + choice) for row in task.rows for choice in row["choices"]]
        scores, cut = log_likelihoods(asker, pairs, batch_size=self.batch_size)
        if any(math.isnan(score) for score in scores):
            raise CannotAsk("a log-likelihood is NaN: look for NaN in the weights")
        right: dict[str, list[int]] = {quantities[0].name: [] for quantities in CHOICES}
        start = 0
        for row in task.rows:
            choices = row["choices"]
            own = scores[start : start + len(choices)]
            start += len(choices)
            characters, encoded = [len(choice) for choice in choices], [len(choice.encode()) for choice in choices]
            lengths = {"acc": [1] * len(choices), "acc_norm": characters, "acc_bytes": encoded}
            for name, sizes in lengths.items():
                by_size = [score / size for score, size in zip(own, sizes, strict=True)]
                right[name].append(int(by_size.index(max(by_size)) == row["answer"]))
        return {"right": right, "cut": cut, "scores": scores}

    def _written(self, asker: Asker, task: Questions) -> dict[str, Any]:
        found = [written(asker, row["prompt"], until=self.until, most=self.max_new_tokens) for row in task.rows]
        answers = [[answer.strip() for answer in row["answer"]] for row in task.rows]
        right = [int(text.strip() in known) for (text, _), known in zip(found, answers, strict=True)]
        return {"right": {"exact_match": right}, "cut": sum(cut for _, cut in found), "texts": [t for t, _ in found]}


def _asker(moment: Moment) -> tuple[Asker | None, str | None]:
    model, tokenizer = moment.model, moment.subject.tokenizer
    if not callable(tokenizer):
        return None, NO_TOKENIZER
    try:
        check_can_sample(model)
    except CannotSample as error:
        return None, str(error)
    positions = getattr(getattr(unwrap(model), "config", None), "max_position_embeddings", None)
    return Asker(model, tokenizer, positions if isinstance(positions, int) and positions > 0 else None), None


def _columns(task: Questions, result: dict[str, Any]) -> list[Column]:
    """Every number of a task, or the reason for none."""
    columns, known, why = [], result.get("right", {}), result.get("reason")
    other = "the answers are in words" if not task.choose else "the questions are multiple choice"
    for value, low, high in (*CHOICES, WORDS):
        right, missing = known.get(value.name), why if (value is not Q.exact_match) == task.choose else other
        share = None if right is None else sum(right) / len(right)
        ends = (None, None) if share is None else wilson(share, len(task.rows))
        for quantity, number in zip((value, low, high), (share, *ends), strict=True):
            columns.append(_column(quantity, number, missing))
    guessing = sum(1 / len(row["choices"]) for row in task.rows) / len(task.rows) if task.choose else None
    columns += [_column(Q.chance, guessing, other), _column(Q.questions, len(task.rows), None)]
    return [*columns, _column(Q.cut, result.get("cut"), why)]


def _column(quantity: Quantity, value: float | None, reason: str | None) -> Column:
    return quantity.column([value], {}, {0: reason} if value is None and reason else {})
