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


class Memo:
    """Results by a digest of their question: in memory, and in a folder if one is given.

    A result is anything JSON can hold, and numbers that are not finite. It is always decoded from its JSON form, so
    that a computed result and a cached one are the same.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.computed = 0
        """How many results had to be computed."""
        self._known: dict[str, str] = {}

    def once(self, question: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The answer to the question, computed if it is not cached; a damaged file counts as not cached."""
        asked = json.dumps(_encoded(question), sort_keys=True, allow_nan=False)
        digest = hashlib.sha256(f"{SCHEMA}\n{asked}".encode()).hexdigest()
        if digest not in self._known:
            kept = self._read(digest, asked)
            if kept is None:
                self.computed += 1
                kept = json.dumps(_encoded(compute()), allow_nan=False)
                self._write(digest, asked, kept)
            self._known[digest] = kept
        answer: dict[str, Any] = _decoded(json.loads(self._known[digest]))
        return answer

    def _path(self, digest: str) -> Path | None:
        return None if self.folder is None else self.folder / digest[:2] / f"{digest}.json"

    def _read(self, digest: str, asked: str) -> str | None:
        path = self._path(digest)
        if path is None or not path.is_file():
            return None
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            whole = body["question"] == json.loads(asked) and body["check"] == _check(body["answer"])
            return json.dumps(body["answer"]) if whole else None
        except (ValueError, KeyError, TypeError):  # damaged: it is computed again
            return None

    def _write(self, digest: str, asked: str, kept: str) -> None:
        path = self._path(digest)
        if path is None:
            return
        answer = json.loads(kept)
        body = json.dumps({"question": json.loads(asked), "answer": answer, "check": _check(answer)})
        # without fsync: what a power failure damages is computed again
        write_text(path, body, durable=False)


def _check(answer: Any) -> str:
    return hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:16]


def _encoded(value: Any) -> Any:
    return plain_json(value, nonfinite=lambda number: {_FLOAT: str(number)}, other=_refused)


def _refused(value: Any) -> Any:
    raise TypeError(f"a result to remember holds a {type(value).__name__}: plain numbers, text, lists and dictionaries")


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return float(value[_FLOAT])
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value
