"""Several models on one frontier: what dominates what, what is recommended, and what is not compared."""

from __future__ import annotations

import math

import numpy as np
import pytest

import learnscope as ls
from comparison.ranked import TEXTS, ranked_runs, shared_texts
from learnscope.comparison.compared import Comparison
from learnscope.comparison.ranking import LOSS, PER_BYTE, PERPLEXITY, Ranking
from learnscope.comparison.ranking_words import ranking_verdict
from learnscope.run import Run
from report.audit.audit_runs import AuditRun, made

NAMES = ["base", "tuned", "large"]


def compared(runs: list[AuditRun], names: list[str] | None = None) -> Comparison:
    return ls.compare([Run(run.backend) for run in runs], names=names or NAMES[: len(runs)])


def ranking_of(runs: list[AuditRun]) -> Ranking:
    found = compared(runs).ranking
    assert isinstance(found, Ranking)
    return found


def test_points_of_all_models_share_one_frontier() -> None:
    ranking = ranking_of(ranked_runs())
    assert (ranking.measure, len(ranking.points)) == (PERPLEXITY, 8)
    assert [point.title for point in ranking.frontier] == ["tuned, uniform_4", "tuned, uniform_8", "tuned, as stored"]
    assert ranking.best.title == "tuned, as stored"
    # uniform_4 is e^0.03 − 1 = 3 % worse, uniform_8 0.5 %
    assert ranking.smallest().title == "tuned, uniform_8"
    assert ranking.change(ranking.smallest(), ranking.best).value == pytest.approx(math.expm1(0.005), rel=1e-9)
    fits = ranking.at_size(0.6e6)
    assert fits is not None
    assert fits.title == "tuned, uniform_4"
    assert ranking.at_size(1e5) is None
    base = next(point for point in ranking.points if point.title == "base, as stored")
    assert {point.title for point in ranking.dominated_by(base)} == {
        "tuned, as stored", "tuned, uniform_8", "tuned, uniform_4",
    }  # fmt: skip
    assert ranking.quality(base).value == pytest.approx(math.exp(3.0))


def test_the_verdict_names_what_is_dominated_and_the_base() -> None:
    both = compared(ranked_runs())
    assert both.ranking is not None
    said = dict(ranking_verdict(both.ranking, both.audits))
    assert said["smallest within 1 %"].startswith("tuned, uniform_8: 1 MB, perplexity +0.501 %")
    dominated = [text for label, text in ranking_verdict(both.ranking, both.audits) if label == "dominated"]
    assert [text.split()[0] for text in dominated] == ["base", "large"]
    assert len(ranking_verdict(both.ranking, both.audits)) <= 10
    body = both.to_json()["ranking"]
    assert [point["dominated_by"] for point in body["points"] if point["model"] == "tuned"] == [None] * 3


def test_other_tokens_are_compared_by_byte() -> None:
    runs = [made(2), made(2)]
    shared_texts(runs[0], {"original": (4e6, 3.0)}, classes=50_000)
    shared_texts(runs[1], {"original": (4e6, 3.1)}, tokens="other", classes=300)
    ranking = ranking_of(runs)
    assert ranking.measure == PER_BYTE
    assert ranking.quality(ranking.best).value == pytest.approx(math.exp(3.0 / 4))
    assert ranking.weights.tolist() == [80.0] * len(TEXTS)


def test_what_is_not_the_same_thing_is_named_and_not_ranked() -> None:
    runs = [made(2), made(2), made(2)]
    shared_texts(runs[0], {"original": (4e6, 3.0)}, predicts=False, classes=3)
    shared_texts(runs[1], {"original": (4e6, 3.1)}, predicts=False, classes=4)
    ranking = ranking_of(runs)
    assert ranking.measure == LOSS
    assert ranking.not_ranked == {
        "tuned": "it has 4 classes, and base has 3", "large": "it was not audited together with the others",
    }  # fmt: skip
    assert {point.model for point in ranking.points} == {"base"}
    assert compared([made(2), made(2)]).ranking is None, "audits that were made one by one have no ranking"


def test_a_loss_that_is_not_finite_takes_no_part_and_is_named() -> None:
    runs = [made(2), made(2)]
    shared_texts(runs[0], {"original": (4e6, 3.0), "uniform_2": (1e5, math.nan)})
    shared_texts(runs[1], {"original": (4e6, 3.1)})
    ranking = ranking_of(runs)
    assert list(ranking.not_finite) == ["base, uniform_2"]
    assert all(np.isfinite(point.losses).all() for point in ranking.points)
    assert ("not finite", "base, uniform_2") in ranking_verdict(ranking, {})


def test_few_texts_decide_by_the_upper_end_of_the_interval() -> None:
    """A mean within the loss is not enough where the texts do not show it."""
    runs = [made(2), made(2)]
    shared_texts(runs[0], {"original": (4e6, 3.0), "uniform_8": (1e6, 3.005)})
    shared_texts(runs[1], {"original": (4e6, 3.5)})
    ranking = ranking_of(runs)
    sure = next(point for point in ranking.points if point.name == "uniform_8")
    assert ranking.is_within(sure)
    noise = np.where(np.arange(len(TEXTS)) % 2, 4.0, -4.0)
    unsure = type(sure)(sure.model, sure.name, sure.bytes, sure.losses + noise, sure.right)
    other = Ranking(ranking.measure, [ranking.best, unsure], ranking.weights)
    assert other.change(unsure, other.best).value == pytest.approx(math.expm1(0.005), rel=1e-6)
    assert not other.is_within(unsure)
    assert other.smallest() is other.best
