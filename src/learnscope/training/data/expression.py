"""Arithmetic that a model wrote, read by Python's parser. Nothing is executed, and no text can make it hang."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

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
    return Fraction(node.value)
