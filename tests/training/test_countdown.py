"""Countdown problems, their solutions, the evaluator that never executes anything, and rewards."""

from __future__ import annotations

import re
import time
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learnscope.training.data.countdown import WORDED, generate, prompt, solve
from learnscope.training.data.rewards import answer_in, answer_reward, countdown_reward, countdown_score, evaluate

Tree = tuple[str, Fraction | None, tuple[int, ...]]
"""A text, what it comes to, its numbers."""


def joined(parts: tuple[Tree, str, Tree]) -> Tree:
    (left, a, before), sign, (right, b, after) = parts
    value = None
    if a is not None and b is not None and not (sign == "/" and b == 0):
        value = {"+": a + b, "-": a - b, "*": a * b}[sign] if sign != "/" else a / b
    return f"({left} {sign}{right})", value, (*before, *after)


numbers = st.integers(0, 999_999).map(lambda n: (str(n), Fraction(n), (n,)))
trees = st.recursive(numbers, lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(joined), max_leaves=8)


@given(trees)
def test_it_computes_exactly_what_the_tree_does(tree: Tree) -> None:
    text, value, used = tree
    found = evaluate(text)
    assert found is not None
    assert (found.value, found.numbers) == (value, used)


@given(st.lists(st.tuples(st.integers(1, 99), st.sampled_from("+-*/")), min_size=1, max_size=8))
def test_precedence_is_that_of_python(parts: list[tuple[int, str]]) -> None:
    """Without parentheses, as Python reads the same text with exact numbers."""
    text = "".join(f"{n}{sign}" for n, sign in parts)[:-1]
    exact = "".join(f"Fraction({n}){sign}" for n, sign in parts)[:-1]
    found = evaluate(text)
    assert found is not None
    assert found.value == eval(exact, {"Fraction": Fraction})


@given(st.text(alphabet="0123456789+-*/() .=a", max_size=40))
@settings(max_examples=300)
def test_any_text_has_an_answer(text: str) -> None:
    """Where it is one Python would compute alike, signs and powers apart, so does this; nothing raises."""
    found = evaluate(text)
    if found is None or found.value is None:
        return
    exact = re.sub(r"\d+", lambda number: f"Fraction({int(number[0])})", text)
    assert eval(exact.strip(), {"Fraction": Fraction}) == found.value


@pytest.mark.parametrize(
    "text",
    ["", " ", "9**9**9", "9**9", "2^3", "-3+5", "3+-5", "1e9", "0x10", "3 4", "(3", "3)", "()", "3+", "*3", "1/0)",
     "__import__('os')", "a", "3,000", "1.5", "(" * 150, "9" * 300, "1234567", "٣+٤", "3+4 = 7"],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    assert evaluate(text) is None


def test_nothing_hangs() -> None:
    begun = time.perf_counter()
    assert evaluate("*".join(["999999"] * 28)) is not None
    assert evaluate("(" * 90 + "1" + ")" * 90) is not None
    assert evaluate("9**" * 60 + "9") is None
    assert evaluate("1+" * 10_000_000) is None
    assert time.perf_counter() - begun < 1


def test_a_division_by_zero_has_no_value() -> None:
    found = evaluate("(4-4)/(3-3)")
    assert found is not None
    assert found.value is None
    assert found.numbers == (4, 4, 3, 3)


def reachable(numbers: tuple[int, ...]) -> set[Fraction]:
    """Everything that can be reached, by splitting every order of the numbers everywhere."""

    def values(order: tuple[int, ...]) -> set[Fraction]:
        if len(order) == 1:
            return {Fraction(order[0])}
        found = set()
        for place in range(1, len(order)):
            for a in values(order[:place]):
                for b in values(order[place:]):
                    found |= {a + b, a - b, a * b} | ({a / b} if b else set())
        return found

    return {value for order in permutations(numbers) for value in values(order)}


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3), st.integers(-5, 60))
@settings(max_examples=150, deadline=None)
def test_the_solver_finds_a_solution_where_there_is_one(given_numbers: list[int], target: int) -> None:
    found = solve(given_numbers, target)
    assert (found is not None) == (target in reachable(tuple(given_numbers)))
    if found is not None:
        read = evaluate(found)
        assert read is not None
        assert read.value == target
        assert sorted(read.numbers) == sorted(given_numbers)


def test_the_solver_knows_fractions_and_its_limits() -> None:
    assert solve([8, 8, 3, 3], 24) == "8/(3-8/3)"
    assert solve([1, 1, 1, 1], 99) is None
    with pytest.raises(ValueError, match="1 to 5 numbers"):
        solve([1] * 6, 6)


@given(st.integers(-3, 1000), st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_generated_problems_are_solvable_and_the_same_for_a_seed(seed: int, amount: int) -> None:
    problems = generate(8, seed, amount)
    assert problems == generate(8, seed, amount)
    assert generate(5, seed, amount) == problems[:5]
    for numbers_given, target in problems:
        assert len(numbers_given) == amount
        assert 1 <= target <= 99
        assert countdown_score(solve(numbers_given, target) or "", numbers_given, target) == 1.0


def test_prompts() -> None:
    assert prompt([3, 4, 7], 14) == "3 4 7:14="
    assert "numbers 3, 4, 7, write" in prompt([3, 4, 7], 14, WORDED)
    assert prompt([1], 2, "{target} from {numbers}") == "2 from 1"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("3+4+7", 1.0),
        ("7 + (3+4)", 1.0),
        ("<think>2+2</think> 3+4+7", 1.0),
        ("so <answer>1</answer> no: <answer> 3+4+7 = 14 </answer>.", 1.0),
        ("3×4+7−5", 0.1 + 0.2 * 3 / 4),  # a number too many
        ("7+7", 0.1 + 0.2 * 1 / 3),  # one of them twice
        ("3*4*7", 0.3),  # all of them, another result
        ("14", 0.1),
        ("3/0", 0.1 + 0.2 * 1 / 3),
        ("3+4+7!", 0.0),
        ("", 0.0),
        ("9**9**9", 0.0),
    ],
)
def test_what_completions_earn(text: str, score: float) -> None:
    assert countdown_score(text, [3, 4, 7], 14) == pytest.approx(score)


def test_rewards_of_batches() -> None:
    chat = [[{"role": "assistant", "content": "3+4"}], "3*4"]
    assert countdown_reward(chat, nums=[[3, 4], [3, 4]], target=[7, 12], prompts=["", ""]) == [1.0, 1.0]
    assert answer_reward(["<answer>Paris </answer>", "rome"], answer=[" paris", "Milan"]) == [1.0, 0.0]
    assert answer_in("3 + 4 = 7") == "3 + 4"
