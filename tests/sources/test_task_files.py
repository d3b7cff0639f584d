"""Files of questions: read, or refused with what is wrong and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learnscope.posttrain import PosttrainError, read_task
from learnscope.sources.errors import SourceError
from learnscope.sources.task_files import read_task as rows_of

GOOD = {"context": "a b", "choices": ["c", "d"], "answer": 1}


def file(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "made.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_both_kinds(tmp_path: Path) -> None:
    assert rows_of(file(tmp_path, GOOD, {**GOOD, "answer": "c"}))[1]["answer"] == 0
    assert rows_of(file(tmp_path, {"prompt": "p", "answer": "x"})) == [{"prompt": "p", "answer": ["x"]}]
    task = read_task(file(tmp_path, GOOD))
    assert (task.name, task.choose, len(task.rows)) == ("made", True, 1)
    assert task.digest != read_task(file(tmp_path, {**GOOD, "answer": 0})).digest


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**GOOD, "answer": 2}, "0 to 1, or its text"),
        ({**GOOD, "answer": True}, "0 to 1, or its text"),
        ({**GOOD, "answer": None}, "question 2: the answer is None"),
        ({**GOOD, "choices": ["c"]}, "two or more texts"),
        ({**GOOD, "choices": ["c", "c"]}, "the same"),
        ({**GOOD, "choices": ["c", ""]}, "two or more texts"),
        ({**GOOD, "context": 3}, "context is 3; a text is needed"),
        ({"prompt": "p", "answer": "x"}, "another kind than the first"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        rows_of(file(tmp_path, GOOD, row))


def test_files_that_are_no_tasks(tmp_path: Path) -> None:
    with pytest.raises(PosttrainError, match=r"task='.*': there is no file"):
        read_task(tmp_path / "absent.jsonl")
    with pytest.raises(SourceError, match="has no questions"):
        rows_of(file(tmp_path))
    with pytest.raises(SourceError, match="question 1 has text: a question has"):
        rows_of(file(tmp_path, {"text": "a"}))
    with pytest.raises(SourceError, match="a list of texts, is needed"):
        rows_of(file(tmp_path, {"prompt": "p", "answer": []}))
