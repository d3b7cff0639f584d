"""Results remembered by content."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from learnscope.store.memo import ResultCache

ANSWER = {"kl": 0.1 + 0.2, "bad": [math.nan, -math.inf], "none": None, "by": {4: (1, "é")}}
READ_BACK = {"kl": 0.1 + 0.2, "none": None, "by": {"4": [1, "é"]}}


def asked(memo: ResultCache, question: dict[str, Any], answer: dict[str, Any] = ANSWER) -> tuple[dict[str, Any], int]:
    before = memo.computed
    return memo.once(question, lambda: answer), memo.computed - before


def test_the_first_answer_and_the_remembered_one_are_the_same(tmp_path: Path) -> None:
    first, computed = asked(ResultCache(tmp_path), {"a": 1})
    again, computed_again = asked(ResultCache(tmp_path), {"a": 1}, {"other": 1})
    assert (computed, computed_again) == (1, 0)
    for answer in (first, again):
        nan, low = answer.pop("bad")
        assert math.isnan(nan)
        assert low == -math.inf
    assert first == again == READ_BACK


def test_another_question_is_another_answer_whatever_the_order_of_its_words(tmp_path: Path) -> None:
    memo = ResultCache(tmp_path)
    assert asked(memo, {"a": 1, "b": 2}, {"x": 1}) == ({"x": 1}, 1)
    assert asked(memo, {"b": 2, "a": 1}, {"x": 2}) == ({"x": 1}, 0)
    assert asked(memo, {"a": 1, "b": 2.5}, {"x": 3}) == ({"x": 3}, 1)
    assert asked(ResultCache(), {"a": 1, "b": 2}, {"x": 4}) == ({"x": 4}, 1), "one without a folder knows its own only"


@pytest.mark.parametrize("damage", ["cut", "number", "other", "empty"])
def test_a_damaged_file_is_not_believed(tmp_path: Path, damage: str) -> None:
    asked(ResultCache(tmp_path), {"a": 1}, {"x": 1.5})
    [path] = tmp_path.rglob("*.json")
    text = path.read_text()
    body = json.loads(text)
    path.write_text({
        "cut": text[:-9], "number": text.replace("1.5", "1.6"), "other": json.dumps({**body, "question": {"a": 2}}),
        "empty": "",
    }[damage])  # fmt: skip
    assert asked(ResultCache(tmp_path), {"a": 1}, {"x": 1.5}) == ({"x": 1.5}, 1)
    assert asked(ResultCache(tmp_path), {"a": 1}, {"x": 7}) == ({"x": 1.5}, 0), "and it is written anew"


def test_what_json_cannot_hold_is_refused_by_name_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="holds a set"):
        ResultCache(tmp_path).once({"a": 1}, lambda: {"x": {1}})
    assert list(tmp_path.rglob("*.json")) == []


def test_what_fails_is_tried_again(tmp_path: Path) -> None:
    memo = ResultCache(tmp_path)
    with pytest.raises(ZeroDivisionError):
        memo.once({"a": 1}, lambda: {"x": 1 / 0})
    assert asked(memo, {"a": 1}, {"x": 1}) == ({"x": 1}, 1)
