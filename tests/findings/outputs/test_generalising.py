"""Training accuracy that the holdout does not share, on both sides of every cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats

from findings.made_telemetry import MadeTelemetry
from learnscope.findings import Cuts
from learnscope.findings.outputs.held_out.generalising import generalising
from learnscope.findings.outputs.held_out.overfitting import overfitting
from learnscope.record import Finding

RISING = [0.5, 0.7, 0.9, 1.0]


def judged(run: MadeTelemetry, **cuts: Any) -> list[Finding]:
    return generalising(run.reader, Cuts(**cuts))


def kinds(training: Sequence[float | None] = RISING, holdout: Any = 0.5, **more: Any) -> list[str]:
    cuts = more.pop("cuts", {})
    run = MadeTelemetry(source=more.pop("source", "telemetry"), **more.pop("model", {}))
    run.epochs(training, holdout, **more)
    return [finding.kind for finding in judged(run, **cuts)]


def wilson(right: int, n: int) -> tuple[float, float]:
    found = stats.binomtest(right, n).proportion_ci(method="wilson")
    return found.low, found.high


def test_what_is_right_at_first_sight_was_not_memorised() -> None:
    """Four batches of 20 in each epoch: the later half of the first are 40 examples, 38 of them right."""
    run = MadeTelemetry()
    run.epochs([0.95, 1.0, 1.0, 1.0], 0.5)
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == ("shortcut", "critical")
    (low, high), (under, over) = wilson(38, 40), wilson(100, 200)
    expected = (
        0.45 - math.hypot(0.95 - low, over - 0.5),
        0.45 + math.hypot(high - 0.95, 0.5 - under),
    )
    evidence = finding.evidence
    assert evidence.value == pytest.approx(0.45)
    assert evidence.interval == pytest.approx(expected, abs=1e-9)
    assert (evidence.n, evidence.first_step, evidence.last_step) == (40, 30, 40)
    assert (evidence.probe, evidence.name) == ("Loss", "train_accuracy")
    assert "95 % right at first sight, 50 % of the holdout" in finding.title
    assert "Late in the first epoch (2 batches, steps 30 to 40)" in finding.detail
    assert f"95 % (95 % interval {100 * low:.3g} % to {100 * high:.3g} %, n = 40)" in finding.detail
    assert "100 % (95 % interval 95.4 % to 100 %, n = 80) in steps 130 to 160" in finding.detail
    assert "batch normalisation" not in finding.detail


def test_batch_normalisation_would_look_the_same_and_is_named() -> None:
    run = MadeTelemetry(layer_types={"backbone.0": "Conv2d", "backbone.2": "BatchNorm2d", "head": "Linear"})
    run.epochs([0.95, 1.0, 1.0, 1.0], 0.5)
    [finding] = judged(run)
    assert "or the model fails in eval mode, where backbone.2 (batch normalisation)" in finding.detail
    assert finding.advice.startswith("First run the model in eval mode on training examples")


def test_what_is_right_only_on_examples_seen_before_was_memorised() -> None:
    run = MadeTelemetry()
    run.epochs(RISING, 0.5)
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == ("memorised", "warning")
    assert "100 % right, 50 % at first sight, 50 % of the holdout" in finding.title
    evidence = finding.evidence
    assert (evidence.probe, evidence.name, evidence.n, evidence.value) == ("Holdout", "holdout_accuracy", 200, 0.5)
    assert evidence.interval == pytest.approx(wilson(100, 200), abs=1e-9)
    assert (evidence.first_step, evidence.last_step) == (140, 160)  # the last three measurements


@pytest.mark.parametrize(
    ("right", "kind"),
    [  # of 40 at first sight; the holdout is 100 of 200, the cut is 0.1 at the lower end of the interval
        (26, "memorised"),  # −0.02: no better than the holdout
        (28, "not_generalising"),  # 0.03: better, but not by the cut
        (30, "not_generalising"),  # 0.08
        (31, "shortcut"),  # 0.11
    ],
)
def test_both_sides_of_the_gap_at_first_sight(right: int, kind: str) -> None:
    assert kinds([right / 40, 0.8, 0.9, 1.0]) == [kind]


def test_the_gap_is_a_cut() -> None:
    assert kinds([30 / 40, 0.8, 0.9, 1.0], cuts={"shortcut_gap": 0.08}) == ["shortcut"]


@pytest.mark.parametrize(
    ("right", "stuck"), [(113, True), (115, False), (87, True), (85, False)]
)  # of 200: Wilson's interval of 113 begins at 49.6 %, of 115 at 50.6 %; of 87 it ends at 50.4 %, of 85 at 49.4 %
def test_at_chance_is_an_interval_that_holds_chance(right: int, stuck: bool) -> None:
    assert bool(kinds(RISING, right / 200)) is stuck


@pytest.mark.parametrize(("examples", "stuck"), [(5, False), (39, False), (40, True)])
def test_a_tiny_holdout_says_nothing(examples: int, stuck: bool) -> None:
    assert bool(kinds(RISING, 0.5, validate={"examples": examples})) is stuck


def test_few_measurements_of_the_holdout_say_nothing() -> None:
    assert kinds([0.5, 0.7, 1.0], 0.5, per_epoch=1, batch={"size": 60}) == []
    assert kinds(RISING, 0.5, per_epoch=1, batch={"size": 60}) == ["memorised"]


def test_training_that_does_not_rise_is_another_story() -> None:
    assert kinds([0.5] * 4) == []
    # the last epoch's 80 examples: 51 right is 53 % at least, 48 right is 49 %
    assert kinds([0.5, 0.5, 0.5, 48 / 80]) == []
    assert kinds([0.5, 0.5, 0.5, 51 / 80]) == ["not_generalising"]


def test_training_must_be_better_than_chance_and_than_the_holdout() -> None:
    """The last epoch has 400 examples: 54 % of them are 49 % at least, 58 % are 53 %; the holdout is at chance."""
    assert kinds([0.5, 0.5, 0.5, 0.54], 0.44, batch={"size": 100}) == []
    assert kinds([0.5, 0.5, 0.5, 0.58], 0.56, batch={"size": 100}) == []
    assert kinds([0.5, 0.5, 0.5, 0.58], 0.44, batch={"size": 100}) != []


def test_the_holdout_is_compared_at_the_steps_of_the_batches() -> None:
    run = MadeTelemetry()
    for step, epoch, holdout in ((10, 0, 0.3), (20, 0, 0.4), (30, 0, 0.52), (40, 0, 0.54), (50, 1, 0.5), (60, 1, 0.5)):
        run.batch(step, epoch, 0.95)
        run.validate(step, epoch, holdout)
    [finding] = judged(run)
    assert finding.evidence.value == pytest.approx(0.95 - 0.53)  # of steps 30 and 40, the later half of the epoch


def test_a_holdout_that_rises_is_healthy() -> None:
    assert kinds(RISING, [0.5, 0.55, 0.7, 0.85]) == []


def test_a_holdout_that_was_better_once_is_not_stuck_at_chance() -> None:
    assert kinds([0.5, 0.7, 0.9, 0.95, 1.0], [0.5, 0.8, 0.7, 0.5, 0.5]) == []


def test_the_peak_of_noise_is_not_better_than_chance() -> None:
    """Means of three up to 3.3 standard errors above chance, 0.617 of 200 examples, are the luck of many looks."""
    assert kinds([0.5, 0.7, 0.9, 1.0, 1.0], [0.5, 0.61, 0.5, 0.5, 0.5]) == ["memorised"]
    assert kinds([0.5, 0.7, 0.9, 1.0, 1.0], [0.5, 0.62, 0.5, 0.5, 0.5]) == []


def test_epochs_that_nobody_told_are_not_made_up() -> None:
    """Under `watch` every record is of epoch 0 until `end_epoch` is called: nothing is known to be new then."""
    run = MadeTelemetry(source="watch")
    for step in range(10, 170, 10):
        run.batch(step, 0, 1.0)
        run.validate(step, 0, 0.5)
    [finding] = judged(run)
    assert finding.kind == "not_generalising"
    assert "The first epoch was not recorded as such." in finding.detail
    assert "w.end_epoch()" in finding.advice


@pytest.mark.parametrize(("first", "kind"), [(0, "shortcut"), (1, "shortcut"), (7, "not_generalising")])
@pytest.mark.parametrize("source", ["watch", "telemetry"])
def test_the_first_epoch_recorded_must_be_the_first(first: int, kind: str, source: str) -> None:
    assert kinds([1.0] * 4, 0.5, first=first, source=source) == [kind]


def test_epochs_that_were_not_recorded_at_all() -> None:
    run = MadeTelemetry()
    for step in range(10, 170, 10):
        run.batch(step, None, 1.0)
        run.validate(step, None, 0.5)
    assert [finding.kind for finding in judged(run)] == ["not_generalising"]


def test_a_single_epoch_of_telemetry_is_the_first() -> None:
    assert kinds([0.95], 0.5, per_epoch=8) == ["shortcut"]


def test_a_holdout_that_was_not_measured_in_the_first_epoch() -> None:
    run = MadeTelemetry()
    run.epochs([1.0], [None])
    for step in range(100, 180, 10):
        run.batch(step, 1, 1.0)
        run.validate(step, 1, 0.5)
    assert [finding.kind for finding in judged(run)] == ["not_generalising"]


def test_numbers_that_are_not_finite_are_left_out_and_claim_nothing() -> None:
    assert kinds([math.nan] * 4) == []
    assert kinds(RISING, math.nan) == []
    assert kinds(RISING, [0.5, 0.5, 0.5, math.nan]) == []  # what became of it is not known
    assert kinds([0.5, math.nan, 0.9, 1.0], [0.5, math.nan, 0.5, 0.5]) == ["memorised"]


def test_training_batches_after_the_last_look_at_the_holdout_do_not_count() -> None:
    run = MadeTelemetry()
    run.epochs([0.5] * 4, 0.5)
    for step in range(170, 400, 10):
        run.batch(step, 5, 1.0)
    assert judged(run) == []


@pytest.mark.parametrize("name", ["train_accuracy", "accuracy", "train_acc", "acc"])
def test_accuracy_by_any_of_its_names_and_in_percent(name: str) -> None:
    assert kinds(RISING, batch={"name": name}) == ["memorised"]
    assert kinds([100 * value for value in RISING], batch={"name": name}) == ["memorised"]


def test_what_is_no_accuracy_is_not_taken_for_one() -> None:
    assert kinds([-0.5, 0.7, 0.9, 1.0]) == []
    assert kinds([0.5, 0.7, 0.9, 250.0]) == []
    assert kinds(RISING, batch={"name": "agreement"}) == []


def test_chance_is_the_largest_class() -> None:
    """Four of five examples are of one class: always saying so gets 80 %."""
    unequal: dict[str, Any] = {"batch": {"shares": (0.8, 0.2)}}
    assert kinds([0.8, 0.9, 0.95, 1.0], 0.75, **unequal) == ["memorised"]
    assert kinds([0.8, 0.9, 0.95, 1.0], 0.9, **unequal) == []
    assert kinds([0.8, 0.9, 0.95, 1.0], 0.75) == []  # of two equal classes, that is a lot


def test_a_majority_in_few_examples_is_no_majority() -> None:
    """24 of 40 are 60 %, but 45 % at least: no more than an even guess is certain."""
    run = MadeTelemetry()
    run.epochs(RISING, 0.6, batch={"size": 10, "shares": (0.6, 0.4)})
    assert judged(run) == []  # 120 of 200 are 53 % at least
    many = MadeTelemetry()
    many.epochs(RISING, 0.6, batch={"size": 400, "shares": (0.6, 0.4)})
    [finding] = judged(many)
    low, _ = wilson(960, 1600)  # one epoch, not the same examples four times
    assert f"than guessing, {100 * low:.3g} %" in finding.detail


def test_a_guess_of_the_majority_is_no_shortcut() -> None:
    """99 of 100 training examples are of one class, half of the holdout are not."""
    even = {"validate": {"labels": [0] * 100 + [1] * 100}}
    skewed: dict[str, Any] = {"batch": {"size": 100, "shares": (0.99, 0.01)}, **even}
    run = MadeTelemetry()
    run.epochs([0.99] * 4, 0.5, **skewed)
    [finding] = judged(run)
    assert (finding.kind, finding.cause, finding.severity) == ("majority_guess", True, "warning")
    assert "99 % right in training, where that class has 99 %" in finding.title
    assert kinds([0.99] * 4, 0.5, **even) == ["shortcut"]  # of two equal classes, 99 % is more than a guess


def test_many_classes() -> None:
    tenths = [0.1] * 10
    assert kinds([0.1, 0.5, 0.9, 1.0], 0.12, batch={"shares": tenths}) == ["memorised"]
    assert kinds([0.1, 0.5, 0.9, 1.0], 0.5, batch={"shares": tenths}) == []


def test_labels_of_the_holdout_say_more_than_batches() -> None:
    run = MadeTelemetry()
    run.epochs([0.5, 0.9, 0.97, 1.0], 0.9, validate={"labels": [0] * 180 + [1] * 20})
    [finding] = judged(run)  # always guessing class 0 gets 90 % of these
    assert "no better than guessing, 90 %" in finding.detail
    assert kinds([0.5, 0.9, 0.97, 1.0], 0.9) == []


@pytest.mark.parametrize("shares", [(), (1.0,)], ids=["no classes", "one class"])
def test_without_classes_there_is_no_chance(shares: tuple[float, ...]) -> None:
    assert kinds(RISING, batch={"shares": shares}) == []


def test_without_sizes_of_batches_there_is_no_interval() -> None:
    run = MadeTelemetry()
    for step in range(10, 170, 10):
        run.model("Loss", step, train_accuracy=1.0)
        run.validate(step, 0, 0.5, labels=[0, 1] * 100)
    assert judged(run) == []


def test_a_model_that_does_well_on_another_holdout_is_not_guessing() -> None:
    for first, second in ((0.5, 0.9), (0.9, 0.5)):
        run = MadeTelemetry()
        run.epochs(RISING, first)
        for step in range(10, 170, 10):
            run.validate(step, 0, second, probe="Holdout_2")
        assert judged(run) == []


def test_an_earlier_checkpoint_is_no_way_out_of_guessing() -> None:
    for holdout, said in ((0.5, "Step 40 is no way out"), ([0.5, 0.6, 0.7, 0.8], "Accuracy has not fallen")):
        run = MadeTelemetry()
        run.epochs(RISING, holdout)
        for step in range(10, 170, 10):
            run.model("Holdout", step, holdout_loss=abs(step - 40) / 100 + 0.5)
        [finding] = overfitting(run.reader, Cuts())
        assert finding.advice.startswith(said)


def test_an_empty_run() -> None:
    assert judged(MadeTelemetry()) == []
