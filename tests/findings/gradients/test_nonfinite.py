"""NaN and infinity: the first step, the first tensor, and which came first."""

from __future__ import annotations

import math

from findings.made_run import MadeRun
from learnscope.findings import Cuts
from learnscope.findings.gradients.nonfinite import nonfinite

NAN = math.nan
LAYERS = {"a": 0.1, "b": 0.2, "c": 0.1}
BAD = dict.fromkeys(LAYERS, NAN)


def only(run: MadeRun):
    found = nonfinite(run.reader, Cuts())
    assert len(found) == 1
    return found[0]


def test_a_finite_run_says_nothing() -> None:
    run = MadeRun()
    for step in range(1, 20):
        run.loss(step, 1.0)
        run.gradients(step, LAYERS)
    run.change((0, 10), {"a.weight": 0.5})
    assert nonfinite(run.reader, Cuts()) == []


def test_a_loss_that_was_not_logged_is_not_a_broken_one() -> None:
    run = MadeRun()
    run.loss(1, None)
    assert nonfinite(run.reader, Cuts()) == []


def test_bad_gradients_under_a_finite_loss_started_in_the_backward() -> None:
    run = MadeRun()
    for step in range(1, 11):
        run.loss(step, 2.0)
        bad = step == 7
        run.gradients(step, BAD if bad else LAYERS, nan=5 if bad else 0, inf=2 if bad else 0,
                      bad_tensors=3 if bad else 0, first="b.weight" if bad else None)  # fmt: skip
    finding = only(run)
    assert finding.severity == "warning"  # the last measurement is finite again
    assert finding.scopes == ["b.weight"]
    assert "step 7" in finding.title
    assert "b.weight" in finding.title
    for said in ("1 of 10 measurements", "5 NaN and 2 infinite entries in 3 tensors", "clean at step 6",
                 "step 10, is finite again", "backward pass"):  # fmt: skip
        assert said in finding.detail
    assert (finding.evidence.first_step, finding.evidence.n, finding.evidence.value) == (7, 10, 1.0)


def test_a_loss_that_breaks_in_the_same_step_comes_before_the_gradients() -> None:
    run = MadeRun()
    for step in range(1, 11):
        run.loss(step, NAN if step >= 8 else 1.0)
        run.gradients(step, BAD if step >= 8 else LAYERS, nan=9 if step >= 8 else 0, first="a.w" if step >= 8 else None)
    finding = only(run)
    assert finding.severity == "critical"
    assert finding.title == "Loss not finite from step 8"
    assert "3 of 10" in finding.detail
    assert "forward pass of step 8" in finding.detail
    assert "gradients were finite up to step 7" in finding.detail
    assert "left its course" not in finding.detail


def test_a_loss_that_grew_before_it_broke_is_told_from_one_that_did_not() -> None:
    run = MadeRun()
    for step in range(1, 11):
        run.loss(step, 1.0 if step < 9 else 64.0)
    run.loss(11, math.inf)
    finding = only(run)
    # before[-21:] are ten values; the median of the nine before the last is 1
    assert "64 just before, against a median of 1 over the 9 values" in finding.detail
    assert "learning rate" in finding.advice


def test_without_a_loss_the_origin_is_not_claimed() -> None:
    run = MadeRun()
    run.gradients(10, LAYERS)
    run.gradients(20, BAD, nan=1, first="c.w", bad_tensors=1)
    finding = only(run)
    assert finding.severity == "critical"
    assert "was not recorded" in finding.detail
    assert "1 NaN entry in 1 tensor." in finding.detail


def test_parameters_that_break_under_finite_gradients() -> None:
    run = MadeRun()
    for step in range(1, 11):
        run.gradients(step, LAYERS)
        run.loss(step, 1.0)
    run.change((0, 5), {"a.w": 0.5})
    run.change((5, 10), {"a.w": 0.5, "b.w": 0.5}, nan=4, bad={"b.w": 4})
    finding = only(run)
    assert finding.severity == "critical"
    assert finding.title == "Parameters not finite from step 10"
    assert "4 NaN entries in 1 tensor" in finding.detail
    assert "Gradients were finite in every measurement up to step 10" in finding.detail


def test_only_the_holdout_loss() -> None:
    run = MadeRun()
    run.loss(10, 1.0)
    run.holdout(10, None, mean=NAN)
    assert "Holdout loss" in only(run).title


def test_a_holdout_that_breaks_just_before_training_does_is_a_witness() -> None:
    """It is measured after the step; the next training loss shows the same broken weights."""
    run = MadeRun()
    for step in range(1, 31):
        run.loss(step, NAN if step > 20 else 1.0)
        if step % 10 == 0:
            run.holdout(step, None, mean=NAN if step >= 20 else 1.0)
    finding = only(run)
    assert finding.title.startswith("Loss not finite from step 21")
    assert "The holdout, measured after step 20, saw it before" in finding.detail
    assert "holdout data" not in finding.advice
    assert finding.since == 20


def test_a_holdout_that_breaks_long_before_training_has_a_reason_of_its_own() -> None:
    run = MadeRun()
    for step in range(1, 41):
        run.loss(step, NAN if step > 35 else 1.0)
        if step % 10 == 0:
            run.holdout(step, None, mean=NAN if step >= 20 else 1.0)
    finding = only(run)
    assert finding.title.startswith("Holdout loss not finite from step 20")
    assert "Look at the holdout data" in finding.advice


def test_a_loss_that_left_its_course_comes_before_a_broken_holdout() -> None:
    """As when the loss is maximised by mistake: it grows from the first step on."""
    run = MadeRun()
    for step in range(1, 21):
        run.loss(step, 2.0 * 1.3**step)
    run.holdout(10, None, mean=50.0)
    run.holdout(20, None, mean=NAN)
    finding = only(run)
    assert "holdout data" not in finding.advice
    assert "not maximised" in finding.advice
    assert "had left its course before: 380" in finding.detail


def test_superseded_breakage_is_gone_after_a_resume() -> None:
    run = MadeRun()
    for step in range(1, 11):
        run.loss(step, NAN if step > 5 else 1.0)
    run.resume(5)
    for step in range(6, 11):
        run.loss(step, 1.0)
    assert nonfinite(run.reader, Cuts()) == []
