"""Levels and noise of a loss, and what happens in its course, on courses whose truth is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from findings.made_run import MadeRun
from learnscope.reading.course.events import endless_fall, jump, rise, spikes
from learnscope.reading.course.loss_course import FEWEST, Course, course_of, loss_course, noise_of

Draw = np.random.Generator
Make = Callable[[Draw], np.ndarray]
SEEDS = 20


def decay(n: int = 300, noise: float = 0.05, end: float = 0.2) -> Make:
    return lambda draw: end + 2.1 * np.exp(-5 * np.arange(n) / n) + noise * draw.standard_normal(n)


def courses(make: Make) -> list[Course]:
    found = []
    for seed in range(SEEDS):
        values = make(np.random.default_rng(seed))
        course = course_of(np.arange(1, len(values) + 1), values)
        assert course is not None
        found.append(course)
    return found


def changed(make: Make, place: int, values: np.ndarray) -> Make:
    def other(draw: Draw) -> np.ndarray:
        course = make(draw)
        course[place : place + len(values)] += values
        return course

    return other


def staged(draw: Draw) -> np.ndarray:
    stages = [0.3 + 0.2 * k + np.exp(-np.arange(250) / 60) for k in range(4)]
    return np.concatenate(stages) + 0.05 * draw.standard_normal(1000)


HEALTHY: dict[str, Make] = {
    "20 steps": decay(20),
    "30 steps": decay(30),
    "long": decay(5000),
    "without noise": decay(200, noise=0.0),
    "very noisy": decay(1000, noise=0.7),
    "noise in proportion": lambda d: (0.02 + 2 * np.exp(-np.arange(800) / 90)) * np.exp(0.3 * d.standard_normal(800)),
    "batches of one example": lambda d: (0.1 + 2 * np.exp(-np.arange(2000) / 300)) * d.gamma(0.3, 3, 2000),
    "cyclic rate": lambda d: 0.15 * np.sin(np.arange(1000) / 30) + decay(1000, 0.03)(d),
    "noise that remembers": lambda d: (
        decay(1000, 0.0)(d) + 0.02 * np.convolve(d.standard_normal(1199), 0.9 ** np.arange(200), "valid")
    ),
    "harder by stages": staged,
    "around zero": lambda d: 0.3 * d.standard_normal(1000),
    "below zero": lambda d: decay(500, end=-3.0)(d) * 1000,
    "converged": lambda d: 1e-7 * d.random(500) + 2.3 * np.exp(-np.arange(500) / 10),
    "flat": lambda d: 2.3 + 0.02 * d.standard_normal(400),
}


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY)
def test_nothing_happens_in_a_healthy_course(make: Make) -> None:
    for course in courses(make):
        assert (spikes(course), rise(course), jump(course), endless_fall(course)) == ([], None, None, False)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("offset", [0.0, -50.0])
def test_neither_scale_nor_zero_matters(scale: float, offset: float) -> None:
    makes: list[Make] = [decay(), changed(decay(), 148, np.array([9.0])), changed(decay(), 150, np.linspace(0, 4, 150))]
    for make in makes:
        for course in courses(make)[:5]:
            other = course_of(course.steps, scale * (course.values + offset))
            assert other is not None
            assert [s.step for s in spikes(other)] == [s.step for s in spikes(course)]
            assert other.improved == course.improved
            ours, theirs = rise(course), rise(other)
            assert (ours and ours.since) == (theirs and theirs.since)


def test_a_spike_has_its_step_its_height_and_its_return() -> None:
    for course in courses(changed(decay(), 147, np.array([56.4]))):
        [spike] = spikes(course)
        assert (spike.step, spike.back, spike.values) == (148, 149, 1)
        assert spike.value == pytest.approx(56.8, abs=0.5)
        assert spike.level == pytest.approx(course.values[127:147].mean(), abs=0.1)
        assert spike.heights > 100
        assert rise(course) is None


def test_a_spike_that_takes_long_to_recover_is_one() -> None:
    for course in courses(changed(decay(), 100, 8 * np.exp(-np.arange(20) / 6))):
        [spike] = spikes(course)
        assert 100 <= spike.step <= 103
        assert spike.back is not None
        assert 110 <= spike.back <= 125


def test_a_spike_at_the_very_end_has_not_recovered() -> None:
    for course in courses(changed(decay(), 299, np.array([30.0]))):
        [spike] = spikes(course)
        assert (spike.step, spike.back) == (300, None)


def test_several_spikes_and_tails_without_any() -> None:
    two = changed(changed(decay(), 100, np.array([9.0])), 200, np.array([3.0]))
    assert all([s.step for s in spikes(course)] == [101, 201] for course in courses(two))
    heavy = [len(spikes(course)) for course in courses(lambda draw: 0.5 + 0.1 * draw.standard_t(3, 1000))]
    assert np.mean(np.array(heavy) > 0) <= 0.1


def test_a_rise_that_stays() -> None:
    for course in courses(changed(decay(), 150, np.linspace(0, 3, 150))):
        found = rise(course)
        assert found is not None
        assert 150 < found.since < 190
        assert found.lost > 0.5
        assert not found.from_start
    for course in courses(lambda draw: 2.3 + np.arange(100) / 20 + 0.1 * draw.standard_normal(100)):
        found = rise(course)
        assert found is not None
        assert found.from_start
        assert found.lost == np.inf


def test_a_rise_that_comes_back_is_none() -> None:
    bump = np.concatenate([np.linspace(0, 2, 60), np.linspace(2, 0, 60)])
    assert all(rise(course) is None for course in courses(changed(decay(), 150, bump)))


def test_a_jump_at_the_start() -> None:
    def make(draw: Draw) -> np.ndarray:
        values = 3.5 + 0.5 * np.exp(-np.arange(300) / 50) + 0.05 * draw.standard_normal(300)
        values[:12] = [4.2, 20, 70, 60, 45, 30, 20, 15, 10, 8, 6, 5]
        return values

    for course in courses(make):
        found = jump(course)
        assert found is not None
        assert (found.first, found.step, found.value) == (4.2, 3, 70.0)
        assert found.back is not None
        assert found.back >= 13


def test_a_fall_without_end() -> None:
    assert all(map(endless_fall, courses(lambda d: -2.3 * np.exp(np.arange(100) / 30) + 0.05 * d.standard_normal(100))))


def test_levels_have_honest_errors() -> None:
    """Of flat noise, the difference of two levels in units of its error is no larger than normal."""
    for noise in (stats.norm(), stats.uniform(-1, 2)):
        scores = []
        for seed in range(300):
            course = course_of(np.arange(200), noise.rvs(200, random_state=seed))
            assert course is not None
            scores.append(course.levels[10].above(course.end))
        assert 0.5 < np.std(scores) < 1.4


def test_noise_is_that_around_a_trend() -> None:
    draw = np.random.default_rng(0)
    assert noise_of(np.arange(5000) / 10 + 0.3 * draw.standard_normal(5000)) == pytest.approx(0.3, rel=0.05)
    assert noise_of([1.0]) == noise_of([]) == 0.0


def test_what_was_gained() -> None:
    for course in courses(decay()):
        assert course.improved
        assert course.gain == pytest.approx(2.1, abs=0.2)
        assert not course.flat(0.01)
    assert all(course.flat(0.01) and not course.improved for course in courses(HEALTHY["flat"]))
    still = course_of(np.arange(50), np.full(50, 2.3))
    assert still is not None
    assert (still.noise, still.gain, still.flat(0.01)) == (0.0, 0.0, True)


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    values = decay()(np.random.default_rng(0))
    values[[3, 200]] = np.nan, np.inf
    course = course_of(np.arange(300), values)
    assert course is not None
    assert (len(course), course.broken) == (298, 2)
    assert course_of(np.arange(FEWEST), np.full(FEWEST, np.nan)) is None


def test_what_was_known_at_a_step() -> None:
    course = courses(decay())[0]
    assert course.until(100).steps[-1] == 100


def test_the_course_of_a_run_is_made_once() -> None:
    from learnscope.reading.gather import one_pass

    run = MadeRun()
    for step, value in enumerate(decay(40)(np.random.default_rng(0)), 1):
        run.loss(step, float(value))
    reader = one_pass(run.reader)
    course = loss_course(reader)
    assert course is not None
    assert (len(course), course.probe, course.name) == (40, "Loss", "loss")
    assert loss_course(reader) is course
    assert loss_course(MadeRun().reader) is None


def test_a_million_losses_take_seconds_and_little_memory() -> None:
    import tracemalloc

    values = decay(1_000_000)(np.random.default_rng(0))
    values[700_000] += 5
    tracemalloc.start()
    course = course_of(np.arange(len(values)), values)
    assert course is not None
    assert [spike.step for spike in spikes(course)] == [700_000]
    assert rise(course) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * values.nbytes


def test_a_loss_that_swings_back_to_where_it_began() -> None:
    swings = np.concatenate([np.linspace(2.3, 0.4, 40), np.linspace(0.4, 2.6, 70), np.full(40, 2.6)])
    for course in courses(lambda draw: swings + 0.3 * draw.standard_normal(150)):
        found = rise(course)
        assert found is not None
        assert found.lost > 0.8
