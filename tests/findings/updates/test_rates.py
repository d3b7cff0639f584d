"""Learning rates that went to the wrong parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from findings.made_telemetry import BACKBONE, HEAD, MadeTelemetry
from learnscope.findings import Cuts
from learnscope.findings.updates.rates import rates
from learnscope.record import Finding

RISING = [0.5, 0.7, 0.9, 1.0]
MOVING = {"backbone.0": 0.2, "backbone.2": 0.2, "head": 0.1}


def judged(run: MadeTelemetry, **cuts: Any) -> list[Finding]:
    return rates(run.reader, Cuts(**cuts))


def exchanged(stuck: bool, **lr: float) -> MadeTelemetry:
    run = MadeTelemetry()
    run.optimizer({"backbone": HEAD, "head": BACKBONE}, {"backbone": 1e-3, "head": 1e-2, **lr})
    run.epochs(RISING, 0.5 if stuck else [0.5, 0.6, 0.7, 0.8])
    return run


def test_groups_that_hold_each_others_parameters() -> None:
    run = exchanged(stuck=True)
    for end in range(10, 90, 10):
        run.delta((end - 10, end), MOVING, {"backbone": 0.08, "head": 0.01})
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == ("rate_in_wrong_group", "critical")
    assert finding.title == (
        "2 optimizer groups without the parameters of the module they are called by: backbone and head"
    )
    assert (
        "the group backbone (learning rate 0.001 at the start) holds head, and nothing of backbone; the group head "
        "(learning rate 0.01 at the start) holds backbone.0 and backbone.2, and nothing of head." in finding.detail
    )
    assert "‖Δ‖/‖W‖ of backbone was 8 times that of head (median of 8 measurements, steps 10 to 80" in finding.detail
    assert "no better than guessing, 50 %" in finding.detail
    assert "exchange the two learning rates" in finding.advice
    assert (finding.evidence.probe, finding.evidence.n, finding.evidence.value) == ("run.json", 6, 2.0)
    assert finding.scopes == ["backbone", "head"]


def test_recorded_rates_come_before_those_of_the_start() -> None:
    run = exchanged(stuck=False)
    for step, rate in ((10, 1e-5), (20, 3e-5), (30, 5e-5)):
        run.rates(step, rate, 10 * rate)
    [finding] = judged(run)
    assert "the group backbone (learning rate 3.0e-05, median of 3)" in finding.detail


def test_severity_follows_what_it_does() -> None:
    assert [finding.severity for finding in judged(exchanged(stuck=False))] == ["warning"]
    # with one rate for both, the names are wrong and nothing else is
    assert [finding.severity for finding in judged(exchanged(stuck=True, head=1e-3))] == ["info"]


def test_one_group_alone() -> None:
    run = MadeTelemetry()
    run.optimizer({None: HEAD, "head": BACKBONE}, {None: 1e-3, "head": 1e-2})
    [finding] = judged(run)
    assert finding.title == "An optimizer group without the parameters of the module it is called by: head"
    assert "exchange" not in finding.advice


@pytest.mark.parametrize(
    "held",
    [
        {"backbone": BACKBONE, "head": HEAD},
        {"backbone": BACKBONE[:1], "no_decay": BACKBONE[1:], "head": HEAD},  # part of it
        {"head": [*HEAD, *BACKBONE]},  # it and more
        {"decay": BACKBONE, "no_decay": HEAD},  # names of no module
        {"back": BACKBONE, "hea": HEAD},  # parts of a module's name are not its name
        {"backbone": [], "rest": [*BACKBONE, *HEAD]},  # nothing of this model: another model's backbone
        {None: [*BACKBONE, *HEAD]},
    ],
    ids=str,
)
def test_groups_that_are_as_they_may_be(held: dict[str | None, list[str]]) -> None:
    run = MadeTelemetry()
    run.optimizer(held, {name: 10.0**-number for number, name in enumerate(held, 1)})
    run.epochs(RISING, 0.5)
    assert judged(run) == []


def test_an_older_run_does_not_say_what_groups_hold() -> None:
    run = exchanged(stuck=True)
    for group in run.manifest["optimizers"][0]["groups"]:
        del group["layers"]
    assert judged(run) == []


def slow(ratios: list[float], *, stuck: bool = True, rate: tuple[float | None, float | None] = (1e-2, 1e-3),
         **more: Any) -> MadeTelemetry:  # fmt: skip
    """The head has the smaller rate and moves by 0.01; the backbone by so many times as much."""
    run = MadeTelemetry()
    run.epochs(RISING, 0.5 if stuck else [0.5, 0.6, 0.7, 0.8])
    for number, ratio in enumerate(ratios, 1):
        run.delta((10 * number - 10, 10 * number), MOVING, {"backbone": 0.01 * ratio, "head": 0.01})
        run.rates(10 * number, *rate, **more)
    return run


TIMES = [3.1, 12.0, 5.0, 4.0, 7.0, 6.0, 9.0, 8.0, 20.0]


def test_a_head_that_is_slower_than_the_backbone() -> None:
    [finding] = judged(slow(TIMES))
    assert (finding.kind, finding.severity, finding.scopes) == ("slow_head", "warning", ["backbone", "head"])
    evidence = finding.evidence
    assert (evidence.probe, evidence.name, evidence.n) == ("WeightDelta", "update_to_weight", 9)
    assert (evidence.first_step, evidence.last_step) == (10, 90)
    assert evidence.value == pytest.approx(np.median(TIMES))
    low, high = stats.binom.ppf([0.025, 0.975], 9, 0.5)  # 2 and 7: the 2nd and the 8th of 9
    ordered = sorted(TIMES)
    assert evidence.interval == pytest.approx((ordered[int(low) - 1], ordered[int(high)]))
    assert "The larger learning rate went to backbone, which moves 7 times as much as head" in finding.title
    assert "learning rate of backbone was 0.01 and that of head 0.001 (medians)." in finding.detail
    assert "no better than guessing" in finding.detail


@pytest.mark.parametrize(("least", "found"), [(3.0, False), (3.01, True)])
def test_both_sides_of_the_ratio(least: float, found: bool) -> None:
    assert bool(judged(slow([least] * 6 + [50.0]))) is found


def test_a_median_beyond_the_cut_is_not_enough() -> None:
    assert judged(slow([2.9, 8.0, 8.0, 8.0, 8.0, 8.0])) == []  # the interval of six values is all of them


def test_the_ratio_and_the_number_of_measurements_are_cuts() -> None:
    assert judged(slow([5.0] * 8), slow_head=6.0) == []
    assert judged(slow([5.0] * 8), group_measurements=9) == []


@pytest.mark.parametrize(("n", "found"), [(5, False), (6, True)])
def test_few_measurements_say_nothing(n: int, found: bool) -> None:
    assert bool(judged(slow([8.0] * n))) is found


def test_a_small_rate_for_the_head_that_works_is_fine_tuning() -> None:
    assert judged(slow(TIMES, stuck=False)) == []


def test_a_head_with_the_larger_rate_is_as_it_should_be() -> None:
    assert judged(slow(TIMES, rate=(1e-3, 1e-2))) == []
    assert judged(slow(TIMES, rate=(1e-3, 1e-3))) == []


def test_without_the_rates_nothing_is_said_of_them() -> None:
    assert judged(slow(TIMES, rate=(None, None))) == []
    assert judged(slow(TIMES, rate=(1e-2, None))) == []


def test_by_the_optimizers_groups_where_none_are_named() -> None:
    run = slow([], stuck=True)
    for number, ratio in enumerate(TIMES, 1):
        run.delta((10 * number - 10, 10 * number), MOVING, {"backbone": 0.01 * ratio, "head": 0.01},
                  probe="ParameterChange")  # fmt: skip
        run.rates(10 * number, 1e-2, 1e-3, kinds=["group"])
    [finding] = judged(run)
    assert (finding.kind, finding.evidence.probe) == ("slow_head", "ParameterChange")


def test_a_head_that_does_not_move_at_all_is_not_slow() -> None:
    run = MadeTelemetry()
    run.epochs(RISING, 0.5)
    for end in range(10, 110, 10):
        run.delta((end - 10, end), {**MOVING, "head": 0.0}, {"backbone": 0.1, "head": 0.0})
        run.rates(end, 1e-2, 0.0)
    assert judged(run) == []
