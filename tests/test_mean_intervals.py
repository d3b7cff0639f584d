"""Intervals of means over examples: against a loop, and how often they hold the truth of skewed populations."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

import learnscope.intervals as module
from learnscope.intervals import (
    MeanInterval,
    ratio_ends,
    ratio_interval,
    share_difference_interval,
    share_interval,
)
from populations.skewed import CHOSEN_ON, JUDGED_ON, LARGE, ONE_IN_A_HUNDRED, Population
from studentised import by_loop, drawn

Floats = NDArray[np.float64]


def data(examples: int = 60, seed: int = 3) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, 40, examples).astype(np.float64)
    return tokens * generator.random(examples) * 3, tokens


@pytest.mark.parametrize("examples", [9, 60])
def test_the_interval_is_that_of_a_loop_over_the_same_draws_whatever_the_chunks(
    examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, below = data(examples)
    expected = by_loop(above, below, drawn(examples, 301, seed=5))
    low, high, reason = ratio_interval(above, below, resamples=301, seed=5)
    assert reason is None
    assert (low, high) == pytest.approx(expected, rel=1e-9)
    monkeypatch.setattr(module, "DRAWN", 2 * examples)  # two draws at a time
    assert ratio_interval(above, below, resamples=301, seed=5)[:2] == pytest.approx(expected, rel=1e-9)


def test_of_many_normal_values_it_is_students() -> None:
    values = np.random.default_rng(0).normal(3, 2, 2000)
    low, high, _ = ratio_interval(values, np.ones(2000), resamples=4000)
    wanted = stats.t.interval(0.95, 1999, values.mean(), stats.sem(values))
    assert (low, high) == pytest.approx(wanted, abs=0.06 * (wanted[1] - wanted[0]))


def test_it_draws_from_a_generator_of_its_own() -> None:
    above, below = data()
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    first = ratio_interval(above, below)
    after = torch.get_rng_state(), np.random.get_state(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert (before[1][1] == after[1][1]).all()
    assert before[2] == after[2]
    assert ratio_interval(above, below) == first
    assert ratio_interval(above, below, seed=1) != first


def test_what_is_never_negative_has_no_negative_end() -> None:
    values = np.zeros(40)
    values[:4] = np.random.default_rng(1).lognormal(0, 1, 4)
    values[-1] = 1e-3
    assert ratio_interval(values, np.ones(40)).low == 0
    values[-1] = -1e-3
    assert ratio_interval(values, np.ones(40)).low < 0


def test_examples_that_count_for_nothing_change_nothing() -> None:
    above, below = data()
    more = np.r_[above, np.zeros(5)], np.r_[below, np.zeros(5)]
    assert ratio_interval(*more) == ratio_interval(above, below)


def test_units_and_a_shift_change_it_as_they_change_the_ratio() -> None:
    above, below = data()
    low, high, _ = ratio_interval(above, below)
    assert ratio_interval(1e-9 * above, 3 * below)[:2] == pytest.approx((low / 3e9, high / 3e9), rel=1e-9)
    # in float32 the small differences between examples would be lost beside the large common part
    assert ratio_interval(above + 1e5 * below, below)[:2] == pytest.approx((low + 1e5, high + 1e5), abs=1e-8)


def test_what_has_no_interval_says_why_and_what_helps() -> None:
    one_of_many = np.zeros(40)
    one_of_many[3] = 2.0
    for above, said in (
        (np.empty(0), "0 examples are too few: an interval over examples needs 8, so give more"),
        (np.array([2.0]), "1 example is too few"),
        (np.arange(7.0), "7 examples are too few"),
        (np.r_[np.arange(9.0), math.nan, math.inf], "2 of 11 examples are not finite"),
        (np.full(9, 0.3), "all 9 examples have the same value, which says nothing of others: give more"),
        (np.zeros(9), "all 9 examples have the same value"),
        (one_of_many, "40 examples are too few for how unequal they are: give more"),
    ):
        low, high, reason = ratio_interval(above, np.ones(len(above)))
        assert math.isnan(low)
        assert math.isnan(high)
        assert str(reason).startswith(said)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry per example is needed"):
        ratio_interval(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="resamples=0"):
        ratio_interval(np.ones(3), np.ones(3), resamples=0)


DRAWS = 300
LEAST = int(stats.binom.ppf(0.01, DRAWS, 0.92))
"""Hits below which 300 draws are no chance result of an interval that covers 92 %: 264 of 300."""


def hits(population: Population, n: int, draws: int = DRAWS) -> tuple[int, int]:
    """In how many samples the truth is not missed, and how many have an interval."""
    above, below = population.draw(np.random.default_rng(n), (draws, n))
    low, high = ratio_ends(above, below)
    given = np.isfinite(low) & np.isfinite(high)
    missed = given & ((low > population.mean) | (high < population.mean))
    return int((~missed).sum()), int(given.sum())


@pytest.mark.parametrize("n", [8, 16, 32, 64, 128, 256])
def test_it_covers_populations_that_it_was_not_chosen_on(n: int) -> None:
    """Of each population no fewer hits than chance explains, and of all together 92 %."""
    found = {name: hits(population, n) for name, population in JUDGED_ON.items()}
    for name, (hit, given) in found.items():
        assert hit >= LEAST, (name, hit, given)
        if "zeros" not in name:  # whose samples may have too few values above 0 to say anything
            assert given == DRAWS, (name, given)
    sure = [(hit - DRAWS + given, given) for hit, given in found.values()]
    assert sum(hit for hit, _ in sure) >= 0.92 * sum(given for _, given in sure)


def test_the_trial_finds_out_an_interval_that_does_not_cover() -> None:
    """The percentiles of drawn means, which were used before."""
    population, n = JUDGED_ON["log-normal 1"], 32
    above, _ = population.draw(np.random.default_rng(n), (DRAWS, n))
    chosen = np.random.default_rng(0).integers(n, size=(400, n))
    low, high = np.quantile(above[:, chosen].mean(-1), [0.025, 0.975], axis=1)
    assert ((low <= population.mean) & (population.mean <= high)).sum() < LEAST


def test_the_trial_is_of_the_interval_that_is_used() -> None:
    for population in (JUDGED_ON["KL of passages"], JUDGED_ON["90 % zeros"]):
        above, below = population.draw(np.random.default_rng(0), (20, 32))
        for *ends, numerator, denominator in zip(*ratio_ends(above, below), above, below, strict=True):
            found = ratio_interval(numerator, denominator)
            assert (found.reason is None) == bool(np.isfinite(ends).all())
            assert found.reason or found[:2] == pytest.approx(ends, rel=1e-12)


@pytest.mark.parametrize("n", [32, 128])
def test_what_is_too_rare_to_be_seen_is_all_that_it_misses(n: int) -> None:
    above, below = ONE_IN_A_HUNDRED.draw(np.random.default_rng(n), (1000, n))
    low, high = ratio_ends(above, below)
    given = np.isfinite(low) & np.isfinite(high)
    missed = given & ((low > ONE_IN_A_HUNDRED.mean) | (high < ONE_IN_A_HUNDRED.mean))
    seen = (above == LARGE).any(1)
    assert missed[seen].mean() <= 0.08
    assert missed.mean() <= (~seen).mean()


@pytest.mark.soak
@pytest.mark.parametrize("name", [*CHOSEN_ON, *JUDGED_ON])
@pytest.mark.parametrize("n", [8, 16, 32, 64, 128, 256])
def test_it_covers_in_many_draws(n: int, name: str) -> None:
    population = {**CHOSEN_ON, **JUDGED_ON}[name]
    draws = 3000
    hit, _ = hits(population, n, draws)
    assert hit / draws >= 0.92 - 2 * math.sqrt(0.92 * 0.08 / draws)


def texts_right(generator: np.random.Generator, n: int) -> tuple[Floats, Floats, Floats]:
    """Right predictions of two models in n texts of unequal length, whose tokens go together."""
    tokens = generator.integers(5, 60, n)
    easy = generator.beta(4, 6, n)
    first = generator.binomial(tokens, easy)
    return first.astype(float), generator.binomial(first, 0.9).astype(float), tokens.astype(float)


@pytest.mark.parametrize("n", [8, 32])
def test_shares_of_tokens_and_their_differences_are_over_texts(n: int) -> None:
    everything = texts_right(np.random.default_rng(99), 200_000)
    true = everything[0].sum() / everything[2].sum()
    lost = true - everything[1].sum() / everything[2].sum()
    generator, right, right_difference, widths = np.random.default_rng(n), 0, 0, []
    for _ in range(DRAWS):
        first, second, tokens = texts_right(generator, n)
        low, high, _ = share_interval(first, tokens)
        right += low <= true <= high
        low, high, _ = share_difference_interval(first, second, tokens)
        right_difference += low <= lost <= high
        widths.append(high - low)
    assert right >= LEAST
    assert right_difference >= LEAST
    assert np.median(widths) < 0.6 / math.sqrt(n)  # paired: Newcombe's for n yes/no answers is about 1.9/√n


def test_two_shares_that_differ_in_no_text() -> None:
    """Then their own intervals, over texts, are what is known: not those of eight yes/no answers."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(300, 400, 8).astype(float)
    right = np.round(tokens * (0.4 + 0.005 * generator.standard_normal(8)))
    own = share_interval(right, tokens)
    low, high, reason = share_difference_interval(right, right, tokens)
    assert reason is None
    assert own.high - own.low < 0.03
    assert -0.03 < low < 0 < high < 0.03
    assert share_difference_interval(right[:3], right[:3], tokens[:3]).reason


def test_shares_at_their_ends() -> None:
    tokens = np.array([4.0, 9.0, 2.0, 0.0])
    assert share_interval(tokens, tokens)[1:] == (1.0, None)
    assert share_interval(0 * tokens, tokens)[0] == 0
    once = np.array([1.0, 0, 0, 1, 1, 0, 0])
    wanted = stats.binomtest(3, 7).proportion_ci(method="wilson")
    assert share_interval(once, np.ones(7))[:2] == pytest.approx((wanted.low, wanted.high))
    assert share_interval(0 * tokens, 0 * tokens).reason == "no example has a position that counts: give others"
    assert isinstance(share_interval(once, np.ones(7)), MeanInterval)
