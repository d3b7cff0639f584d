"""Files of questions with known answers, for models that read text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from learnscope.model.outputs.questions import Questions
from learnscope.model.outputs.sampling import CannotSample, check_can_sample
from learnscope.posttrain.errors import PosttrainError
from learnscope.sources.errors import SourceError
from learnscope.sources.task_files import read_task as read_rows


def read_task(path: str | Path, *, name: str | None = None, delimiter: str = " ") -> Questions:
    """The questions of a `.jsonl` file, for `ls.TaskAccuracy(tasks=[…])`.

    Each line is multiple choice, `{"context": "…", "choices": ["…", "…"], "answer": 0}`, or is answered in words,
    `{"prompt": "…", "answer": "…"}`. `delimiter` stands between a context and each choice.
    """
    try:
        return Questions(Path(path).stem if name is None else name, read_rows(path), delimiter)
    except SourceError as error:
        raise PosttrainError(f"task={str(path)!r}: {error}") from None


def read_tasks(paths: Sequence[str | Path]) -> list[Questions]:
    """Of several files; those with the same name get a number."""
    made: dict[str, Questions] = {}
    for path in paths:
        name, number = Path(path).stem, 2
        while name in made:
            name, number = f"{Path(path).stem} {number}", number + 1
        made[name] = read_task(path, name=name)
    return list(made.values())


def check_can_answer(model: nn.Module, tokenizer: Any, tasks: Sequence[Questions]) -> None:
    """Refuse tasks for a model to which no question can be put."""
    if tasks and tokenizer is None:
        raise PosttrainError(
            f"task={tasks[0].name!r}: the questions are texts, and no tokenizer was found for {type(model).__name__}: "
            "pass tokenizer= (a folder, a tokenizer.json, or \"bytes\")"
        )  # fmt: skip
    if tasks:
        try:
            check_can_sample(model)
        except CannotSample as error:
            raise PosttrainError(f"task={tasks[0].name!r}: {error}, so it cannot answer questions") from None
