"""Overfitting: paired on the same examples, against the training loss, and nothing said on thin evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from findings.made_run import MadeRun
from learnscope.findings import Cuts
from learnscope.findings.outputs.held_out.overfitting import overfitting
from learnscope.findings.outputs.paired import SMALL, paired_interval
from learnscope.record import Column, Finding, Table

N = 60


def made(
    curve: Sequence[float], *, training: Callable[[int], float] | None = lambda step: 5.0 / step, noise: float = 0.2,
    arrays: bool = True, accuracy: Sequence[float] | None = None, stand_ins: Sequence[str | None] | None = None,
) -> tuple[MadeRun, np.ndarray]:  # fmt: skip
    """Holdout every 10 steps along `curve`, each example with a level of its own; the losses by measurement."""
    random = np.random.default_rng(3)
    level = random.gamma(2.0, 0.5, N)
    losses = np.array([value + level + random.normal(0, noise, N) for value in curve], dtype=np.float32)
    run = MadeRun()
    for step in range(1, 10 * len(curve) + 1) if training else ():
        run.loss(step, training(step))  # type: ignore[misc]
    for i, row in enumerate(losses):
        share = None if accuracy is None else accuracy[i]
        stand_in = None if stand_ins is None else stand_ins[i]
        run.holdout(
            10 * (i + 1), row if arrays else None, mean=float(row.mean()), accuracy=share, stand_in=stand_in
        )  # fmt: skip
    return run, losses.astype(np.float64)


def judged(run: MadeRun, **cuts: float) -> list[Finding]:
    return overfitting(run.reader, Cuts(**cuts))  # type: ignore[arg-type]


RISING = [2.0, 1.5, 1.0, 1.2, 1.4, 1.6]


def test_numbers_equal_those_computed_apart() -> None:
    run, losses = made(RISING)
    [finding] = judged(run)
    rise = losses[5] - losses[2]
    evidence = finding.evidence
    assert evidence.value == pytest.approx(rise.mean(), abs=1e-6)
    t = stats.ttest_rel(losses[5], losses[2]).confidence_interval(1 - 0.05 * N / (N + 64))  # wider for few examples
    assert evidence.interval == pytest.approx((t.low, t.high), abs=0.012)
    assert (evidence.n, evidence.first_step, evidence.last_step) == (N, 30, 60)
    relative = 100 * (losses[5].mean() / losses[2].mean() - 1)
    assert f"{relative:.3g} % above its best, which was at step 30" in finding.title
    # windows of half the span: steps 16 to 30 and 46 to 60
    before, after = (np.median([5.0 / s for s in steps]) for steps in (range(16, 31), range(46, 61)))
    assert f"fell from {before:.3g} to {after:.3g} (medians of 15 and 15 values" in finding.detail
    assert "n = 60 examples" in finding.detail
    assert finding.severity == "critical"
    assert "step 30" in finding.advice


def test_the_same_run_gives_the_same_interval() -> None:
    first, second = (judged(made(RISING)[0])[0].evidence.interval for _ in range(2))
    assert first == second


def test_long_examples_count_once() -> None:
    """Example 0 has 50 positions that worsen, examples 1 to 9 one each that improve: no rise over examples."""
    example = [0] * 50 + list(range(1, 10))
    run = MadeRun()
    for i, step in enumerate((10, 20, 30, 40)):
        losses = [1.0 + i] * 50 + [5.0 - 0.5 * i] * 9
        run.holdout(step, losses, example)
        run.loss(step, 1.0)
    # over positions the mean rises from 1.61 to 4.0; over examples it falls
    assert judged(run) == []


def test_the_rise_is_a_mean_over_examples_of_means_over_positions() -> None:
    """30 examples of 5 positions rise by 0.2 between best and last, 30 of one position by 1: 0.6 on average."""
    example = [i for i in range(30) for _ in range(5)] + list(range(30, 60))
    run = MadeRun()
    for step, share in ((10, 1.0), (20, 0.0), (30, 0.8), (40, 1.0)):
        run.holdout(step, [1.0 + 0.2 * share] * 150 + [1.0 + share] * 30, example)
    [finding] = judged(run)
    assert finding.evidence.value == pytest.approx(0.6, abs=1e-6)
    assert finding.evidence.n == 60


@pytest.mark.parametrize("curve", [[2.0, 1.5, 1.2, 1.1, 1.05, 1.0], [1.0] * 6, [2.0, 1.5, 1.0, 0.99, 1.0, 1.01]])
def test_healthy_curves(curve: list[float]) -> None:
    run, _ = made(curve, training=lambda step: 1.5 + 1 / step, noise=0.05)
    assert judged(run) == []


def test_a_difference_within_the_noise_of_examples_is_nothing() -> None:
    """The mean rises by 10 %, but half of the examples fell: other examples might as well have fallen."""
    run = MadeRun()
    swing = np.where(np.arange(N) % 2, 2.1, -1.9)
    for step, values in ((10, 3.0), (20, 2.0), (30, 1.0), (40, 1.0 + swing), (50, 1.0 + swing)):
        run.holdout(step, np.full(N, 0.0) + values)
        run.loss(step, 1.0 / step)
    assert judged(run) == []


def test_one_bad_evaluation_at_the_end_is_not_a_trend() -> None:
    run, _ = made([2.0, 1.5, 1.2, 1.0, 1.0, 2.0], training=lambda step: 2.0 + 1 / step, noise=0.01)
    assert judged(run) == []


def test_three_measurements_are_too_few() -> None:
    run, _ = made([1.0, 1.5, 2.0])
    assert judged(run) == []
    assert len(judged(run, holdout_measurements=3)) == 1


def test_without_arrays_the_evidence_is_weaker_and_says_so() -> None:
    run, losses = made(RISING, arrays=False)
    [finding] = judged(run)
    assert finding.severity == "warning"
    assert finding.evidence.interval is None
    assert finding.evidence.n == 6
    assert finding.evidence.value == pytest.approx(losses[5].mean() - losses[2].mean())
    assert "no interval" in finding.detail


def test_without_a_training_loss() -> None:
    run, _ = made(RISING, training=None)
    [finding] = judged(run)
    assert finding.kind == "overfitting"
    assert finding.severity == "warning"
    assert "between steps 30 and 60 was not recorded" in finding.detail
    assert "Log the training loss" in finding.advice


def test_a_training_loss_that_rises_too_is_not_overfitting() -> None:
    run, _ = made(RISING, training=lambda step: 1.0 + step / 100)
    [finding] = judged(run)
    assert finding.kind == "worsening"
    assert "rise together" in finding.title
    assert "lower learning rate" in finding.advice


def test_accuracy_that_still_rises_changes_the_advice() -> None:
    [up] = judged(made(RISING, accuracy=[0.1, 0.3, 0.5, 0.6, 0.6, 0.7])[0])
    [down] = judged(made(RISING, accuracy=[0.1, 0.3, 0.7, 0.6, 0.6, 0.5])[0])
    assert "from 50 % to 70 %" in up.detail
    assert "Accuracy has not fallen" in up.advice
    assert "from 70 % to 50 %" in down.detail
    assert "Accuracy has not fallen" not in down.advice
    assert (up.severity, down.severity) == ("warning", "critical")


def test_nulls_and_broken_examples_are_left_out_and_said() -> None:
    run, _ = made(RISING[:5])
    run.holdout(55, None, mean=None)  # a measurement without a value
    last = np.full(N, 3.5, dtype=np.float32)
    last[:2] = np.nan
    run.holdout(60, last, mean=3.5)
    [finding] = judged(run)
    assert finding.evidence.n == N - 2
    assert "2 examples without a finite loss left out" in finding.detail
    assert "lowest of 6 measurements" in finding.detail


def test_a_missing_array_file_falls_back(tmp_path) -> None:
    from learnscope.store.backend import FolderBackend

    run = MadeRun(FolderBackend.create(tmp_path / "run"))
    for i, value in enumerate(RISING):
        run.holdout(10 * (i + 1), [value] * 5)
    for file in (tmp_path / "run" / "arrays").iterdir():
        file.unlink()
    [finding] = judged(run)
    assert finding.evidence.interval is None


def test_a_resumed_run_forgets_what_was_superseded() -> None:
    run, _ = made(RISING)
    run.resume(30)
    for i, value in enumerate([0.9, 0.8, 0.7]):
        run.holdout(40 + 10 * i, [value] * N)
    assert judged(run) == []


def test_each_holdout_probe_is_judged_on_its_own() -> None:
    run, _ = made(RISING)
    for i, value in enumerate([3.0, 2.0, 1.5, 1.0, 0.9, 0.8]):
        run.holdout(10 * (i + 1), [value] * N, probe="Holdout_2")
    assert [f.evidence.probe for f in judged(run)] == ["Holdout"]


def test_the_interval_covers_and_large_samples_agree_with_small() -> None:
    random = np.random.default_rng(0)
    hits = sum(low <= 0.3 <= high for low, high in
               (paired_interval(random.normal(0.3, 1, 80)).interval or (0, 0) for _ in range(100)))  # fmt: skip
    assert 88 <= hits <= 99
    many = random.normal(0.3, 1, SMALL + 1)
    normal, boot = paired_interval(many), paired_interval(many[:-1])
    assert (normal.how, boot.how) == ("normal approximation", "studentised bootstrap of 2,000")
    assert normal.interval == pytest.approx(boot.interval, abs=0.002)


def test_every_number_of_the_sentence_is_a_number_of_the_run() -> None:
    first, second = (judged(made(curve)[0])[0].detail for curve in (RISING, [*RISING[:5], 2.6]))
    assert re.findall(r"\d+\.\d+", first) != re.findall(r"\d+\.\d+", second)


def test_another_loss_than_the_loop_s_is_no_overfitting_and_not_compared_with_the_training() -> None:
    run, losses = made(RISING, stand_ins=["squared error"] * 6)
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == ("worsening", "info")
    assert finding.title.startswith("The squared error on the holdout is ")
    text = f"{finding.title} {finding.detail} {finding.advice}"
    assert "training loss" not in text
    assert "loss=" in finding.advice
    assert "not to be compared" in finding.detail
    assert finding.evidence.value == pytest.approx((losses[5] - losses[2]).mean(), abs=1e-6)


def test_a_loss_that_becomes_known_is_judged_from_then_on() -> None:
    """The first measurement was of another loss, far lower: it is no best to have risen from."""
    known: list[str | None] = ["squared error", *[None] * 6]
    run, _ = made([-50.0, *RISING], stand_ins=known)
    [finding] = judged(run)
    assert finding.kind == "overfitting"
    assert "step 40" in finding.title
    assert "the lowest of 6 measurements" in finding.detail


def test_a_bad_batch_after_the_best_step_is_where_to_look() -> None:
    """Both losses are higher after one bad batch: neither overfitting nor, by itself, the optimisation."""
    noise = np.random.default_rng(0).normal(0, 0.02, 61)

    def training(step: int) -> float:
        level = 1.0 / step**0.5 if step < 34 else 0.3
        return level + noise[step] * 0.3 + (40.0 if step == 34 else 0.0)

    run, _ = made([3.0, 2.0, 1.0, 2.0, 2.1, 2.2], training=training)
    [finding] = judged(run)
    assert finding.kind == "worsening"
    assert not finding.cause
    assert "at step 34" in finding.advice
    assert "optimisation" not in finding.advice


def test_one_bad_batch_long_after_the_best_step_does_not_hide_overfitting() -> None:
    run, _ = made(RISING, training=lambda step: 5.0 / step + (40.0 if step == 55 else 0.0))
    [finding] = judged(run)
    assert (finding.kind, finding.since) == ("overfitting", 40)
    assert "fell from" in finding.detail


@pytest.mark.parametrize(("scale", "cause"), [(5.0, False), (50.0, True)])
def test_overfitting_is_a_cause_where_the_holdout_was_fitted_before(scale: float, cause: bool) -> None:
    """At best 2 on the holdout: near the training loss of 2, far from one of 0.2, which says it is other data."""
    [finding] = judged(made(RISING, training=lambda step: scale / step)[0])
    assert (finding.kind, finding.cause) == ("overfitting", cause)


def test_a_holdout_that_never_got_better_is_not_overfitted() -> None:
    run, _ = made([2.0, 2.3, 2.6, 3.0, 3.5, 4.0])
    [finding] = judged(run)
    assert (finding.kind, finding.cause) == ("worsening", False)
    assert "prepared alike" in finding.advice


@pytest.mark.parametrize(("drift", "kind"), [(0.2, "overfitting"), (5.0, "worsening")])
def test_stale_statistics_of_batch_norm_are_not_overfitting(drift: float, kind: str) -> None:
    run, _ = made(RISING)
    for step in (10, 60):
        run.write("Inputs", step, [Table("layer", ["bn1", "bn2"], [Column("norm_drift", [0.1, drift])])])
    [finding] = judged(run)
    assert finding.kind == kind
    assert list(finding.scopes) == (["bn2"] if kind == "worsening" else [])


@pytest.mark.parametrize(
    ("curve", "right", "severity"),
    [
        ([2.0, 0.5, 0.0, 0.1, 0.2, 0.3], 0.96, "info"),  # a seventh of the gain is lost, and nine of ten are right
        ([2.0, 0.5, 0.0, 0.1, 0.2, 0.3], 0.85, "warning"),  # fewer are right
        ([2.0, 0.5, 0.0, 0.4, 0.8, 1.2], 0.96, "critical"),  # most of the gain is lost
    ],
)
def test_a_classifier_that_is_trained_until_it_is_sure(curve: list[float], right: float, severity: str) -> None:
    run, _ = made(curve, accuracy=[0.1, 0.6, 0.97, 0.97, 0.96, right])
    for step in range(10, 70, 10):
        run.model("Holdout", step, holdout_examples=200)
    [finding] = judged(run)
    assert (finding.kind, finding.severity) == ("overfitting", severity)


def uneven(curve: dict[int, float], noise: float = 0.0) -> MadeRun:
    """Holdout at the steps of default probes: every 10 to 100, then every 100."""
    run, random = MadeRun(), np.random.default_rng(0)
    for step in range(1, max(curve) + 1):
        run.loss(step, 2.0 / (1 + step / 20))
    for step, value in curve.items():
        run.holdout(step, None, mean=value + random.normal(0, noise))
    return run


DEFAULT_STEPS = [1, *range(10, 101, 10), 200, 300, 400]


def test_a_steady_rise_is_no_noise_where_measurements_lie_far_apart() -> None:
    """Between step 80 and 100 it rises by little, and by ten times as much from each hundredth step to the next."""
    curve = {step: max(2.0 - step / 80, 1.0 + (step - 80) / 400) for step in DEFAULT_STEPS}
    [finding] = judged(uneven(curve, noise=0.01))
    assert finding.kind == "overfitting"
    assert "which was at step 80" in finding.title


def test_a_level_that_wavers_is_none_wherever_it_is_measured() -> None:
    """White noise of a tenth, without losses of single examples to pair: about 4 of 100 rise by luck."""
    alarms = 0
    for seed in range(100):
        random, run = np.random.default_rng(seed), MadeRun()
        for step in range(1, 401):
            run.loss(step, max(2.0 - step / 40, 0.9))
        for step in DEFAULT_STEPS:
            run.holdout(step, None, mean=max(2.0 - step / 40, 1.0) + random.normal(0, 0.1))
        alarms += bool(judged(run))
    assert alarms <= 6


def fitted(training: float, holdout: float, *, accuracy: float | None, began: float = 2.3) -> MadeRun:
    """The training loss falls from `began`, the holdout loss from 2.3, both to their ends, and stay there."""
    run = MadeRun()
    for step in range(1, 201):
        run.loss(step, training + (began - training) * np.exp(-step / 20))
    for step in (1, *range(10, 201, 10)):
        run.holdout(step, None, mean=holdout + (2.3 - holdout) * float(np.exp(-step / 20)), accuracy=accuracy)
        run.model("Holdout", step, holdout_examples=400)
    return run


def test_fitted_training_data_and_a_holdout_that_is_not_without_a_rise() -> None:
    [finding] = judged(fitted(0.07, 1.4, accuracy=0.6))
    assert (finding.kind, finding.severity) == ("overfitting", "warning")
    assert "training loss is 0.07" in finding.title
    assert "holdout loss 1.4" in finding.title
    first = 1.4 + 0.9 * np.exp(-1 / 20)  # at step 1
    began = np.median([0.07 + 2.23 * np.exp(-step / 20) for step in range(1, 6)])
    ends = np.median([0.07 + 2.23 * np.exp(-step / 20) for step in range(161, 201)])
    last = 1.4 + 0.9 * np.exp(-10)
    assert finding.evidence.value == pytest.approx(last / first - ends / began, rel=1e-6)
    assert "60 % (95 % interval" in finding.detail


@pytest.mark.parametrize(
    "run",
    [
        fitted(0.9, 1.4, accuracy=0.6),  # not fitted either
        fitted(0.07, 1.2, accuracy=0.93),  # nine of ten are right: sure of its few mistakes
        fitted(0.01, 0.5, accuracy=None),  # most of it was learned
        fitted(0.01, 1.4, accuracy=0.6, began=0.4),  # another loss, or another scale of it
    ],
)
def test_no_gap_is_told_of(run: MadeRun) -> None:
    assert judged(run) == []


def test_a_training_that_broke_is_no_overfitting() -> None:
    run = fitted(0.07, 1.4, accuracy=0.6)
    run.loss(201, float("nan"))
    assert judged(run) == []
