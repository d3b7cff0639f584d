"""The edge of stability: said of the optimizer's own threshold, and only when the ratio stays there."""

from __future__ import annotations

import numpy as np
import pytest

from findings.made_run import MadeRun
from learnscope.findings import Cuts, find
from learnscope.findings.landscape.sharpness import landscape
from learnscope.record import Finding


def judged(ratios: list[float | None], name: str = "sharpness_ratio", **others: float) -> list[Finding]:
    run = MadeRun()
    for i, ratio in enumerate(ratios):
        run.model("LossLandscape", 500 * (i + 1), **{name: ratio}, **others)
    return landscape(run.reader, Cuts())


def test_a_ratio_that_stays_near_one() -> None:
    [finding] = judged([0.2, 0.6, 0.95, 1.05, 0.92, 1.08])
    assert (finding.kind, finding.severity) == ("edge_of_stability", "info")
    assert finding.title == "Training at the edge of stability since step 1,500"
    assert (
        "4 consecutive measurements, steps 1,500 to 3,000, the sharpness was 0.92 to 1.08 times the threshold 2/η"
        in (finding.detail)
    )
    evidence = finding.evidence
    assert (evidence.probe, evidence.name, evidence.n) == ("LossLandscape", "sharpness_ratio", 4)
    assert (evidence.first_step, evidence.last_step) == (1500, 3000)
    assert evidence.value == pytest.approx(np.median([0.95, 1.05, 0.92, 1.08]))


def test_one_that_left_again_says_so() -> None:
    [finding] = judged([1.0, 1.0, 1.0, 0.4])
    assert finding.title.endswith("in steps 500 to 1,500, not after")


@pytest.mark.parametrize(
    "ratios", [[0.95, 1.05], [0.95, 1.05, 1.2, 0.95, 1.05], [0.5] * 5, [5.0] * 5, [None] * 5, [-1.0] * 5, []]
)
def test_nothing_is_said_otherwise(ratios: list[float | None]) -> None:
    assert judged(ratios) == []


def test_what_was_not_measured_does_not_break_a_streak() -> None:
    [finding] = judged([1.0, None, 1.0, 1.0])
    assert finding.evidence.n == 3


@pytest.mark.parametrize("own", ["preconditioned_ratio", "momentum_ratio"])
def test_the_optimizers_own_threshold_counts(own: str) -> None:
    assert judged([0.3] * 4, own, sharpness_ratio=1.0) == []
    [finding] = judged([1.0] * 4, own, sharpness_ratio=19.0)
    assert finding.evidence.name == own


def test_the_band_is_an_option_and_the_finding_reaches_the_user() -> None:
    run = MadeRun()
    for step in (1, 2, 3):
        run.model("LossLandscape", step, sharpness_ratio=0.7)
    assert find(run.reader) == []
    assert [f.kind for f in find(run.reader, Cuts(edge_band=0.4))] == ["edge_of_stability"]
