"""The end of the memorizing plateau and the doubted labels, against brute force."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from learnscope.findings.examples.label_noise import LabelLosses, LabelsChanged, noise_scores, ranking
from learnscope.findings.examples.memorizing import evolution, why_no_changes


def brute_force(looks: list[tuple[int, float]]) -> tuple[int | None, float, int, float]:
    """The definition read aloud, in plain Python, over all pairs of evaluations."""
    latest = dict(looks)
    curve = [(epoch, latest[epoch]) for epoch in sorted(latest) if math.isfinite(latest[epoch])]
    peak = max(gap for _, gap in curve)
    first = min(epoch for epoch, gap in curve if gap == peak)
    last = max(epoch for epoch, gap in curve if gap == peak)
    transition = None
    if peak >= 0.1:
        for (epoch, gap), (_, following) in pairwise(curve):
            if epoch > last and gap < peak / 2 and following < peak / 2:
                transition = epoch
                break
    return transition, peak, first, curve[-1][1]


@pytest.mark.parametrize("curves", [500, pytest.param(3000, marks=pytest.mark.soak)])
def test_random_curves(curves: int) -> None:
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(curves):
        n = int(generator.integers(1, 12))
        epochs = generator.choice(40, n, replace=bool(generator.integers(2)))
        size = generator.choice([0.15, 0.6, 1.2])
        gaps = np.round(generator.uniform(-0.3, 1, n) * size, int(generator.integers(1, 4)))  # ties are common
        gaps[generator.random(n) < 0.1] = math.nan
        if not np.isfinite(list(dict(zip(epochs.tolist(), gaps.tolist(), strict=True)).values())).any():
            continue
        told = evolution(epochs.tolist(), gaps.tolist())
        expected = brute_force(list(zip(epochs.tolist(), gaps.tolist(), strict=True)))
        assert (told.transition_epoch, told.peak_gap, told.peak_epoch, told.final_gap) == expected
        assert (told.reason is None) == (told.transition_epoch is not None)
        found += told.transition_epoch is not None
    assert curves / 10 < found < curves * 2 / 3, "both answers are common"


@pytest.mark.parametrize(("gaps", "epoch"), [
    ([0.0, 0.8, 0.8, 0.3, 0.2], 3),
    ([0.0, 0.8, 0.8, 0.8, 0.2], None),  # once is not sustained
    ([0.0, 0.8, 0.4, 0.4, 0.4], None),  # half is not below half
    ([0.2, 0.2, 0.2, 0.8, 0.8], None),  # low before the peak
    ([0.8, 0.2, 0.2, 0.8, 0.8], None),  # back at its peak: the plateau has not ended
    ([0.8, 0.2, 0.7, 0.2, 0.1], 3),
    ([0.1, 0.04, 0.04], 1), ([0.0999, 0.0, 0.0], None), ([0.5, -0.1, -0.2], 1), ([0.9], None),
])  # fmt: skip
def test_by_hand(gaps: list[float], epoch: int | None) -> None:
    assert evolution(range(len(gaps)), gaps).transition_epoch == epoch


def test_order_and_repetition_do_not_matter() -> None:
    epochs, gaps = [40, 0, 20, 10, 30, 20], [0.1, 0.0, 0.0, 0.9, 0.1, 0.8]
    told = evolution(epochs, gaps)
    assert told.epochs == [0, 10, 20, 30, 40]
    assert told.gaps.tolist() == [0.0, 0.9, 0.8, 0.1, 0.1]  # of epoch 20 the last look
    assert told.transition_epoch == 30


def test_a_level_that_changes_and_one_that_does_not() -> None:
    noise = np.random.default_rng(3).normal(0, 0.01, 40)
    steady, stepping = 0.5 + noise, np.where(np.arange(40) < 25, 0.8, 0.05) + noise
    told = evolution(range(0, 200, 5), stepping.tolist())
    assert told.change_epochs == [125]
    assert told.transition_epoch == 125
    assert told.changes.p_value == 0.001
    assert why_no_changes(told) is None
    still = evolution(range(0, 200, 5), steady.tolist())
    assert still.change_epochs == []
    assert still.changes.p_value > 0.05
    assert str(why_no_changes(still)).startswith("p = ")
    assert str(why_no_changes(evolution([1, 2], [0.5, 0.1]))).startswith("2 values: from 8 on")


def test_no_gap_at_all() -> None:
    for epochs, gaps in (([], []), ([3], [math.nan])):
        told = evolution(epochs, gaps)
        assert told.transition_epoch is None
        assert told.peak_epoch is None
        assert math.isnan(told.peak_gap)
        assert math.isnan(told.final_gap)
        assert told.reason == "no evaluation has a generalization gap"


def test_doubts_against_dictionaries() -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        n, classes, evaluations = 30, int(generator.integers(2, 7)), int(generator.integers(1, 9))
        labels = generator.integers(0, classes, n)
        doubts, losses_of, held = LabelLosses(), [[] for _ in range(n)], [dict[int, float]() for _ in range(n)]
        for _ in range(evaluations):
            losses, predicted = generator.integers(0, 4, n) / 2, generator.integers(-1, classes, n)
            doubts.add(labels, losses.astype(np.float32), predicted)
            for i in range(n):
                losses_of[i].append(losses[i])  # type: ignore[attr-defined]
                if predicted[i] not in (labels[i], -1):
                    held[i][int(predicted[i])] = held[i].get(int(predicted[i]), 0.0) + losses[i]
        best = [min(votes, key=lambda c: (-votes[c], c)) if votes else -1 for votes in held]
        assert doubts.suggested.tolist() == best
        assert doubts.scores.tolist() == [float(np.mean(one)) for one in losses_of]
        assert doubts.evaluations == evaluations


def test_doubts_of_other_data_are_refused_and_leave_the_sums() -> None:
    doubts = LabelLosses()
    doubts.add([0, 1], [1.0, 2.0], [0, 0])
    with pytest.raises(LabelsChanged, match="1 of 2 labels are other ones"):
        doubts.add([0, 0], [1.0, 2.0], [0, 0])
    with pytest.raises(LabelsChanged, match="3 labels, and 2 before"):
        doubts.add([0, 1, 1], [1.0, 2.0, 3.0], [0, 0, 0])
    assert doubts.scores.tolist() == [1.0, 2.0]


def test_losses_that_are_not_finite() -> None:
    doubts = LabelLosses()
    doubts.add([0, 0, 0, 0], [math.nan, math.inf, 0.5, 3.0], [1, 2, 0, 2])
    doubts.add([0, 0, 0, 0], [1.0, 1.0, 0.5, 3.0], [1, 1, 0, 1])
    assert ranking(doubts.scores).tolist() == [1, 3, 2, 0]
    assert doubts.suggested.tolist() == [1, 2, -1, 1]


def test_scores_against_counting() -> None:
    generator = np.random.default_rng(2)
    scores = generator.integers(0, 30, 200) / 7
    noisy = generator.random(200) < 0.2
    told = noise_scores(scores, noisy, 25)
    pairs = [(a > b) + (a == b) / 2 for a in scores[noisy] for b in scores[~noisy]]
    assert told["auroc"] == pytest.approx(np.mean(pairs))
    first = sorted(range(200), key=lambda i: (-scores[i], i))[:25]
    assert told["precision_at_k"] == pytest.approx(np.mean([noisy[i] for i in first]))
    assert (told["k"], told["noisy"], told["n"]) == (25, int(noisy.sum()), 200)


def test_scores_with_gaps_and_without_a_choice() -> None:
    scores, noisy = np.array([math.inf, 2.0, math.nan, 1.0]), np.array([True, False, True, False])
    told = noise_scores(scores, noisy, 9)
    assert (told["auroc"], told["n"], told["k"]) == (1.0, 3, 3)
    assert told["precision_at_k"] == pytest.approx(1 / 3)
    assert math.isnan(noise_scores(np.array([1.0, 2.0]), np.array([True, True]), 1)["auroc"])
