"""A parser for arithmetic that a model wrote. Nothing is executed, and no text can make it hang."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 200
"""Characters; a longer text is not an answer."""
DIGITS = 6
"""Digits of one number. With `LONGEST` this bounds every intermediate value."""
_TOKEN = re.compile(r"\s*(?:(\d+)|([-+*/()]))")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
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
    tokens = _tokens(text)
    if tokens is None:
        return None
    numbers = tuple(int(token) for token in tokens if token.isdigit())
    reader = _Reader(tokens)
    try:
        value = reader.sum()
    except ZeroDivisionError:
        # the syntax still has to be checked: `1/0)` is no expression
        return Evaluated(None, numbers) if _well_formed(tokens) else None
    except _NotAnExpression:
        return None
    return Evaluated(value, numbers) if reader.at_end else None


class _NotAnExpression(Exception):
    pass


class _Reader:
    """Recursive descent over tokens. `LONGEST` keeps the nesting within Python's recursion limit."""

    def __init__(self, tokens: list[str], operations: dict[str, Callable[..., Fraction]] = _OPERATIONS) -> None:
        self._tokens, self._place, self._operations = tokens, 0, operations

    @property
    def at_end(self) -> bool:
        return self._place == len(self._tokens)

    def sum(self) -> Fraction:
        return self._chain("+-", self._product)

    def _product(self) -> Fraction:
        return self._chain("*/", self._number)

    def _chain(self, signs: str, part: Callable[[], Fraction]) -> Fraction:
        value = part()
        while not self.at_end and self._tokens[self._place] in signs:
            operation = self._operations[self._next()]
            value = operation(value, part())
        return value

    def _number(self) -> Fraction:
        token = self._next()
        if token.isdigit():
            return Fraction(int(token))
        if token != "(":
            raise _NotAnExpression
        value = self.sum()
        if self._next() != ")":
            raise _NotAnExpression
        return value

    def _next(self) -> str:
        if self.at_end:
            raise _NotAnExpression
        self._place += 1
        return self._tokens[self._place - 1]


def _well_formed(tokens: list[str]) -> bool:
    reader = _Reader(tokens, dict.fromkeys("+-*/", lambda a, _b: a))
    try:
        reader.sum()
    except _NotAnExpression:
        return False
    return reader.at_end


def _tokens(text: str) -> list[str] | None:
    text = text.translate(_SIGNS).strip()
    if not text or len(text) > LONGEST or not text.isascii():
        return None
    tokens, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or len(match[1] or "") > DIGITS:
            return None
        tokens.append(match[1] or match[2])
        place = match.end()
    return tokens
