"""Files of questions with known answers: multiple choice, or answers that a model writes itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learnscope.sources.errors import SourceError
from learnscope.sources.files import near_names, read_file

FORMS = (
    'a question has {"context": "…", "choices": ["…", "…"], "answer": 0} (the number of the right choice, from 0, or '
    'its text) or {"prompt": "…", "answer": "…"} (a text, or a list of texts of which each is right)'
)


def read_task(path: str | Path) -> list[dict[str, Any]]:
    """The questions of a `.jsonl` or `.json` file, all of one kind, checked.

    Of multiple choice: `context`, `choices` and `answer`, the right choice's place. Of others: `prompt` and `answer`, a
    list of right answers.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise SourceError(f"there is no file {path}{near_names(file)}")
    rows = read_file(file, (".jsonl", ".json"))
    if not rows:
        raise SourceError(f"{path} has no questions: {FORMS}")
    try:
        return checked_questions(rows)
    except SourceError as error:
        raise SourceError(f"{path}, {error}") from None


def checked_questions(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same for questions that are here already."""
    choose = "choices" in rows[0]
    questions = []
    for number, row in enumerate(rows, 1):
        if ("choices" in row) != choose:
            raise SourceError(f"question {number} is of another kind than the first: a file has one kind of questions")
        questions.append(_choice(row, number) if choose else _written(row, number))
    return questions


def _choice(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    choices, answer = row["choices"], row.get("answer")
    context = _text(row, "context", number, empty=True)
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c for c in choices):
        raise SourceError(f"question {number}: choices are {str(choices)[:80]!r}; two or more texts are needed")
    if len(set(choices)) < len(choices):
        raise SourceError(f"question {number}: two of its choices are the same, so neither can be the only right one")
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise SourceError(
            f"question {number}: the answer is {answer!r}; the place of a choice, 0 to {len(choices) - 1}, or its text "
            "is needed"
        )
    return {"context": context, "choices": choices, "answer": answer}


def _written(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    if "prompt" not in row:
        raise SourceError(f"question {number} has {', '.join(map(str, row)) or 'nothing'}: {FORMS}")
    prompt, answer = _text(row, "prompt", number), row.get("answer")
    answers = [answer] if isinstance(answer, str) else answer
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
        raise SourceError(f"question {number}: the answer is {answer!r}; a text, or a list of texts, is needed")
    return {"prompt": prompt, "answer": answers}


def _text(row: Mapping[str, Any], key: str, number: int, *, empty: bool = False) -> str:
    text = row.get(key)
    if not isinstance(text, str) or not (text or empty):
        raise SourceError(f"question {number}: {key} is {text!r}; a text is needed ({FORMS})")
    return text
