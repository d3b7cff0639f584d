"""Results cached by what they depend on, so that a second examination only computes what is missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from learnscope.record import plain_json
from learnscope.store.files import write_text

SCHEMA = 1
_FLOAT = "not finite"


class ResultCache:
    """Results by a digest of their question: in memory, and in a folder if one is given.

    A result is anything JSON can hold, and numbers that are not finite. It is always decoded from its JSON form, so
    that a computed result and a cached one are the same.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.computed = 0
        """How many results had to be computed."""
        self._answers: dict[str, str] = {}

    def knows(self, question: Mapping[str, Any]) -> bool:
        """Whether the question has been answered; a damaged file may seem to be an answer."""
        _, digest, path = self._place(question)
        return digest in self._answers or (path is not None and path.exists())

    def _place(self, question: Mapping[str, Any]) -> tuple[str, str, Path | None]:
        text = json.dumps(_encoded(question), sort_keys=True, allow_nan=False)
        digest = hashlib.sha256(f"{SCHEMA}\n{text}".encode()).hexdigest()
        return text, digest, None if self.folder is None else self.folder / digest[:2] / f"{digest}.json"

    def once(self, question: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The answer to the question, computed if it is not cached; a damaged file counts as not cached."""
        question_text, digest, path = self._place(question)
        if digest not in self._answers:
            answer = None if path is None else _read(path, question_text)
            if answer is None:
                self.computed += 1
                answer = json.dumps(_encoded(compute()), allow_nan=False)
                if path is not None:  # without fsync: what a power failure damages is computed again
                    plain = json.loads(answer)
                    body = {"question": json.loads(question_text), "answer": plain, "check": _check(plain)}
                    write_text(path, json.dumps(body), durable=False)
            self._answers[digest] = answer
        decoded: dict[str, Any] = json.loads(self._answers[digest], object_hook=_decoded)
        return decoded


def _read(path: Path, question_text: str) -> str | None:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        intact = body["question"] == json.loads(question_text) and body["check"] == _check(body["answer"])
        return json.dumps(body["answer"]) if intact else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # missing or damaged: it is computed
        return None


def _check(answer: Any) -> str:
    return hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:16]


def _encoded(value: Any) -> Any:
    return plain_json(value, nonfinite=lambda number: {_FLOAT: str(number)}, other=_refused)


def _refused(value: Any) -> Any:
    raise TypeError(f"a result to remember holds a {type(value).__name__}: plain numbers, text, lists and dictionaries")


def _decoded(body: dict[str, Any]) -> Any:
    return float(body[_FLOAT]) if body.keys() == {_FLOAT} else body
