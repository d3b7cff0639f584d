"""Intervals of shares of tokens, over texts: how wide they are, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from learnscope.intervals import independent_positions, share_difference_interval, share_interval, wilson

Floats = NDArray[np.float64]
TRIALS = 120


def drawn(generator: np.random.Generator, share: float, within: float, texts: int) -> tuple[Floats, Floats]:
    """Right tokens and all tokens of texts: beta-binomial, with this correlation of two tokens of one text."""
    size = (1 - within) / within
    tokens = generator.integers(60, 128, texts)
    each = generator.beta(share * size, (1 - share) * size, texts)
    return generator.binomial(tokens, each).astype(float), tokens.astype(float)


@pytest.mark.parametrize("share", [0.0005, 0.002, 0.01, 0.4, 0.998])
@pytest.mark.parametrize("within", [0.01, 0.1])
def test_it_covers_shares_of_tokens_also_near_their_ends(share: float, within: float) -> None:
    """Of 8 texts, where most draws have no right token, or too few texts that differ."""
    generator = np.random.default_rng(7)
    held = 0
    for _ in range(TRIALS):
        low, high, reason = share_interval(*drawn(generator, share, within, 8), resamples=200)
        assert reason is None
        held += low <= share <= high
    assert held >= 0.92 * TRIALS


def test_it_covers_differences_of_a_few_tokens() -> None:
    """A variant that loses one right token in 100 and gains one in 200, in the same texts."""
    generator = np.random.default_rng(3)
    held, widths, own = 0, [], []
    for _ in range(TRIALS):
        right, tokens = drawn(generator, 0.4, 0.05, 8)
        lost = generator.binomial(right.astype(int), 0.01)
        gained = generator.binomial((tokens - right).astype(int), 0.005)
        low, high, reason = share_difference_interval(right, right - lost + gained, tokens)
        assert reason is None
        held += low <= 0.4 * 0.01 - 0.6 * 0.005 <= high
        widths.append(high - low)
        own.append(np.subtract(*share_interval(right, tokens, resamples=200)[1::-1]))
    assert held >= 0.93 * TRIALS
    assert 4 * float(np.median(widths)) < float(np.median(own))  # the pairing is used


def test_two_shares_of_tokens_near_0_have_no_interval_of_eight_answers() -> None:
    """8 texts of 127 tokens of which no attacked one is right: Wilson's of 8 examples is 0 to 0.32."""
    tokens = np.full(8, 127.0)
    none, few = np.zeros(8), np.array([0.0, 2, 0, 0, 0, 1, 0, 0])
    assert wilson(0.0, 8)[1] > 0.32
    for one, other in ((none, none), (few, none), (none, few), (few, few)):
        low, high, reason = share_difference_interval(one, other, tokens)
        assert reason is None
        assert -0.07 < low <= (one.sum() - other.sum()) / tokens.sum() <= high < 0.07
    assert share_interval(none, tokens).high < 0.06


def test_it_is_not_narrower_than_texts_that_are_all_right_or_all_wrong_allow() -> None:
    """The tokens of such texts say no more than one each."""
    tokens, right = np.full(16, 100.0), np.array([100.0] * 4 + [0.0] * 12)
    assert independent_positions(right, tokens) == pytest.approx(15)
    low, high, _ = share_interval(right, tokens)
    once_low, once_high = wilson(0.25, 16)
    assert high - low > 0.9 * (once_high - once_low)


def test_more_texts_and_longer_ones_narrow_it() -> None:
    widths = [share_interval(np.zeros(n), np.full(n, m)).high for n, m in ((8, 16.0), (8, 128.0), (64, 128.0))]
    assert widths[0] > widths[1] > 4 * widths[2]
    assert share_interval(np.zeros(8), np.ones(8)).high == wilson(0.0, 8)[1]


def test_few_examples_still_have_none() -> None:
    assert share_interval([1, 2, 0], [9, 9, 9]).reason is not None
    assert share_difference_interval([1, 2, 0], [1, 1, 0], [9, 9, 9]).reason is not None
