"""Rewards for GRPO, and a parser for the arithmetic that a model wrote: nothing is executed, and no text hangs it."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

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
    used, needed = Counter(answer.numbers), Counter(int(number) for number in numbers)
    if used == needed and answer.value == target:
        return 1.0
    return READABLE + NUMBERS * (used & needed).total() / max(used.total(), needed.total())


def answer_reward(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float]:
    """1 where the answer equals the expected one, ignoring letter case and extra spaces; else 0."""
    return [
        float(_plain(answer_in(text_of(completion))) == _plain(answer_in(text_of(expected))))
        for completion, expected in zip(completions, answer, strict=True)
    ]


def answer_in(text: str) -> str:
    """The text in the last <answer> tags, or else after </think>, or else all of it; without a final `= 14`."""
    tagged = _TAGGED.findall(text)
    answer = tagged[-1] if tagged else text.rpartition("</think>")[2]
    return _RESULT.sub("", answer.strip()).strip()


def text_of(completion: Any) -> str:
    """The completion itself, or the last message of a conversation."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence):
        return text_of(completion[-1]["content"]) if completion else ""
    return str(completion)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


LONGEST = 200
"""Characters; a longer text is not an answer. It keeps the nesting within Python's limits."""
DIGITS = 6
"""Digits of one number. With `LONGEST` this bounds every intermediate value."""
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The exact value of an expression, None after a division by 0, and the numbers in it."""

    value: Fraction | None
    numbers: tuple[int, ...]


def evaluate(text: str) -> Evaluated | None:
    """The value of numbers joined by + - * / and parentheses; None for any other text.

    There are no signs in front of numbers, no powers, no names: a whole-number puzzle needs none.

    >>> evaluate("(3+5)*2/4").value, evaluate("2**9"), evaluate("1/0")
    (Fraction(4, 1), None, Evaluated(value=None, numbers=(1, 0)))
    """
    text = text.translate(_SIGNS).strip()
    if (
        len(text) > LONGEST
        or not re.fullmatch(r"[\d\s+*/()-]+", text, re.ASCII)
        or re.search(rf"\d{{{DIGITS + 1}}}", text)
    ):
        return None
    plain = re.sub(r"\b0+(?=\d)", "", " ".join(text.split()))  # Python refuses 07
    try:
        tree = ast.parse(plain, mode="eval").body
    except SyntaxError:
        return None
    numbers = tuple(int(number) for number in re.findall(r"\d+", plain))
    inner = (ast.BinOp, ast.Constant, *_OPERATIONS)
    if not all(isinstance(node, inner) for node in ast.walk(tree)):
        return None
    try:
        return Evaluated(_value(tree), numbers)
    except ZeroDivisionError:
        return Evaluated(None, numbers)


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    return Fraction(node.value)
