"""Rewards for GRPO."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from learnscope.training.data.expression import evaluate

READABLE = 0.1
"""For any arithmetic expression, right or wrong."""
NUMBERS = 0.2
"""For using every given number once; a part of it for using some of them."""
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_RESULT = re.compile(r"=\s*\d+\s*$")


def countdown_reward(completions: Sequence[Any], nums: Sequence[Any], target: Sequence[Any], **_: Any) -> list[float]:
    """1 for an expression that reaches the target with every number exactly once; up to 0.3 for less."""
    rows = zip(completions, nums, target, strict=True)
    return [countdown_score(text_of(completion), numbers, goal) for completion, numbers, goal in rows]


def countdown_score(text: str, numbers: Sequence[int], target: int) -> float:
    """
    >>> [countdown_score(text, [3, 4, 7], 14) for text in ("3+4+7", "<answer>7+4+3 = 14</answer>", "7+7", "hm")]
    [1.0, 1.0, 0.16666666666666669, 0.0]
    """
    answer = evaluate(answer_in(text))
    if answer is None:
        return 0.0
    used, given = Counter(answer.numbers), Counter(int(number) for number in numbers)
    if used == given and answer.value == target:
        return 1.0
    return READABLE + NUMBERS * (used & given).total() / max(used.total(), given.total())


def answer_reward(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float]:
    """1 where the answer equals the expected one, ignoring letter case and extra spaces; else 0."""
    return [
        float(_plain(answer_in(text_of(completion))) == _plain(answer_in(text_of(expected))))
        for completion, expected in zip(completions, answer, strict=True)
    ]


def answer_in(text: str) -> str:
    """The text in the last <answer> tags, or else after </think>, or else all of it; without a final `= 14`."""
    tagged = _TAGGED.findall(text)
    kept = tagged[-1] if tagged else text.rpartition("</think>")[2]
    return _RESULT.sub("", kept.strip()).strip()


def text_of(completion: Any) -> str:
    """The completion itself, or the last message of a conversation."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence):
        return text_of(completion[-1]["content"]) if completion else ""
    return str(completion)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
