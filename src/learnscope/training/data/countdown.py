"""Countdown: reach a target from given numbers with + - * /, each number used exactly once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

BRIEF = "{numbers}:{target}="
"""For the built-in model, whose tokens are single characters."""
WORDED = (
    "Using the numbers {numbers}, write an arithmetic expression that equals {target}. Use + - * / and parentheses, "
    "and every number exactly once. Give the expression alone between <answer> and </answer>."
)
SOLVED_UP_TO = 5
"""Numbers; all ways to combine so many are tried within about a second."""
_SUM, _PRODUCT, _ATOM = 1, 2, 3

Number = int | Fraction
Part = tuple[Number, str, int]
"""A value, its expression, and the precedence of the expression's outermost operator."""


def prompt(numbers: Sequence[int], target: int, template: str = BRIEF) -> str:
    """The question, by default in the brief form.

    >>> prompt([3, 4, 7], 14)
    '3 4 7:14='
    """
    joint = " " if template == BRIEF else ", "
    return template.replace("{numbers}", joint.join(map(str, numbers))).replace("{target}", str(target))


def generate(count: int, seed: int, amount: int = 3, largest: int = 9) -> list[tuple[list[int], int]]:
    """`count` solvable problems of `amount` numbers, the same for the same seed; targets are from 1 to 99."""
    rng = random.Random(f"countdown {seed} {amount} {largest}")
    problems: list[tuple[list[int], int]] = []
    while len(problems) < count:
        numbers = [rng.randint(1, largest) for _ in range(amount)]
        value = numbers[0]
        for number in numbers[1:]:
            value = rng.choice(_WHOLE)(value, number)
        if 1 <= value <= 99:
            problems.append((numbers, value))
    return problems


_WHOLE: tuple[Callable[[int, int], int], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a // b if a % b == 0 else a + b,
)


def solve(numbers: Sequence[int], target: int) -> str | None:
    """An expression that reaches the target, the first in a fixed order, or None if there is none.

    Whole intermediate values are tried first, as people do; then fractions as well.

    >>> solve([3, 4, 7], 14), solve([8, 8, 3, 3], 24), solve([1, 1], 5)
    ('3+4+7', '8/(3-8/3)', None)
    """
    if not 1 <= len(numbers) <= SOLVED_UP_TO:
        raise ValueError(f"problems of 1 to {SOLVED_UP_TO} numbers are solved here, not of {len(numbers)}")
    parts: list[Part] = [(int(number), str(number), _ATOM) for number in numbers]
    return _search(parts, target, fractions=False) or _search(parts, target, fractions=True)


def _search(parts: list[Part], target: int, *, fractions: bool) -> str | None:
    if len(parts) == 1:
        return parts[0][1] if parts[0][0] == target else None
    for i, left in enumerate(parts):
        for j, right in enumerate(parts):
            if i == j:
                continue
            rest = [part for place, part in enumerate(parts) if place not in (i, j)]
            for joined in _joined(left, right, ordered=i < j, fractions=fractions):
                expression = _search([joined, *rest], target, fractions=fractions)
                if expression is not None:
                    return expression
    return None


def _joined(left: Part, right: Part, *, ordered: bool, fractions: bool) -> Iterator[Part]:
    """Two parts joined by each operation; sums and products in one order only."""
    a, b = left[0], right[0]
    if ordered:
        yield a + b, _written(left, "+", right), _SUM
    yield a - b, _written(left, "-", right), _SUM
    if ordered:
        yield a * b, _written(left, "*", right), _PRODUCT
    if b != 0:
        whole, remainder = divmod(a, b)
        if remainder == 0:
            yield whole, _written(left, "/", right), _PRODUCT
        elif fractions:
            yield Fraction(a) / b, _written(left, "/", right), _PRODUCT


def _written(left: Part, sign: str, right: Part) -> str:
    """The expression, with no more parentheses than needed."""
    level = _SUM if sign in "+-" else _PRODUCT
    before = left[1] if left[2] >= level else f"({left[1]})"
    bare = right[2] > level or (right[2] == level and sign in "+*")
    return f"{before}{sign}{right[1] if bare else f'({right[1]})'}"
