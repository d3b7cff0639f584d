"""Ranks, scatter and distances of features against NumPy, SciPy and hand-made cases; calibration too."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist
from scipy.stats import entropy
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score
from torch import Tensor

from learnscope.tensor.features.representation import (
    effective_rank,
    rankme,
    separation,
    singular_values,
    why_not_between,
    why_not_within,
)
from learnscope.tensor.outputs.calibration import (
    brier_scores,
    calibration_error,
    class_probabilities,
    membership_auc,
    reliability,
    usable_bins,
)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("n", "d"), [(50, 8), (8, 50), (1, 5), (5, 1)])
def test_ranks_against_numpy(n: int, d: int) -> None:
    x = noise(n, d) * torch.linspace(0.01, 4, d) + 1
    values = np.linalg.svd(x.double().numpy(), compute_uv=False)
    assert effective_rank(singular_values(x, centred=False)) == pytest.approx(np.exp(entropy(values)), rel=1e-10)
    p = values / values.sum() + 1e-7
    assert rankme(singular_values(x, centred=False)) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-10)
    if n > 1:
        centred = x.double().numpy() - x.double().numpy().mean(0)
        values = np.linalg.svd(centred, compute_uv=False)
        expected = np.exp(entropy(values))
        assert effective_rank(singular_values(x, centred=True)) == pytest.approx(expected, rel=1e-9)


def test_ranks_of_known_spectra() -> None:
    assert effective_rank(torch.ones(7)) == pytest.approx(7)
    assert effective_rank(torch.tensor([3.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_rank(torch.tensor([1e-300, 1e-300], dtype=torch.float64)) == pytest.approx(2)
    # ε adds −Σ ε ln ε for every direction that is not used, which is what the published number has
    assert rankme(torch.tensor([3.0, 0.0, 0.0])) == pytest.approx(math.exp(-2e-7 * math.log(1e-7) - 1e-7), rel=1e-12)
    for empty in (torch.zeros(4), torch.tensor([float("nan"), 1.0]), torch.tensor([float("inf")]), torch.empty(0)):
        assert math.isnan(effective_rank(empty))
        assert math.isnan(rankme(empty))


def test_separation_against_loops() -> None:
    labels = torch.tensor([2, 2, 2, 7, 7, 0, 7, 0, -5])
    x = noise(9, 4) + labels[:, None] * torch.tensor([1.0, 0, 2, 0]) + 1000
    found = separation(x, labels)
    rows, y = x.double().numpy(), labels.numpy()
    within = sum(((rows[y == c] - rows[y == c].mean(0)) ** 2).sum() for c in set(y.tolist()))
    between = ((rows - rows.mean(0)) ** 2).sum() - within
    assert found.ratio == pytest.approx(between / within, rel=1e-8)
    same = np.concatenate([pdist(rows[y == c]) for c in set(y.tolist())])
    other = [cdist(rows[y == a], rows[y == b]).ravel() for a in set(y.tolist()) for b in set(y.tolist()) if a < b]
    assert found.within == pytest.approx(same.mean(), rel=1e-9)
    assert found.between == pytest.approx(np.concatenate(other).mean(), rel=1e-9)
    scaled = separation(x * 17, labels)
    assert scaled.ratio == pytest.approx(found.ratio, rel=1e-4)  # float32 rounds 17·x
    assert scaled.between == pytest.approx(17 * found.between, rel=1e-5)


def test_distances_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = noise(31, 3), torch.arange(31) % 4
    whole = separation(x, labels)
    monkeypatch.setattr("learnscope.tensor.features.representation.CHUNK", 70)
    pieces = separation(x, labels)
    assert (pieces.within, pieces.between) == pytest.approx((whole.within, whole.between), rel=1e-12)


def test_separation_without_spread() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    assert separation(torch.tensor([[0.0], [0], [3], [3]]), labels).ratio == math.inf
    assert math.isnan(separation(torch.ones(4, 2), labels).ratio)
    assert why_not_between(labels) is None
    assert why_not_within(labels) is None
    assert why_not_between(torch.zeros(4)) == "two classes are needed; there is one"
    assert why_not_between(torch.empty(0)) == "two classes are needed; there is none"
    assert why_not_within(torch.arange(4)) == why_not_within(torch.empty(0)) == "no class has two examples"


def test_one_kind_of_distance_without_the_other() -> None:
    x = noise(7, 3)
    one, each = separation(x, torch.zeros(7).long()), separation(x, torch.arange(7))
    assert one.within == each.between == pytest.approx(pdist(x.double().numpy()).mean(), rel=1e-9)
    assert math.isnan(one.between)
    assert math.isnan(each.within)


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize(("n", "bins"), [(150, 15), (1003, 15), (203, 15), (47, 15), (40, 4), (29, 7), (25, 1), (8, 7)])
def test_calibration_error_of_equal_mass_is_scikit_learns(n: int, bins: int, distinct: bool) -> None:
    generator = np.random.default_rng(n)
    confidence = generator.uniform(0.2, 1, n).round(12 if distinct else 1)
    right = generator.uniform(size=n) < confidence**2
    accuracy, mean = calibration_curve(right, confidence, n_bins=bins, strategy="quantile")
    curve = reliability(torch.tensor(confidence), torch.tensor(right), bins).numpy()
    filled = curve[curve[:, 2] > 0]
    np.testing.assert_allclose(filled[:, :2], np.stack([mean, accuracy], 1), rtol=1e-12)
    # the library does not tell its bins' sizes: these are ours, if the ordered confidences cut by them have its means
    sizes = filled[:, 2].astype(int)
    parts = np.split(np.sort(confidence), sizes.cumsum()[:-1])
    np.testing.assert_allclose([part.mean() for part in parts], mean, rtol=1e-12)
    found = calibration_error(torch.tensor(confidence), torch.tensor(right), bins)
    assert found == pytest.approx((sizes * abs(accuracy - mean)).sum() / n, rel=1e-12)


def test_equal_confidences_share_a_bin() -> None:
    sure, right = torch.ones(100), torch.arange(100) < 90
    assert calibration_error(sure, right, 10) == pytest.approx(0.1, rel=1e-12)
    assert calibration_error(sure, right[torch.randperm(100)], 10) == pytest.approx(0.1, rel=1e-12)
    assert calibration_error(torch.full((100,), 0.9, dtype=torch.float64), right, 10) == pytest.approx(0, abs=1e-12)
    assert math.isnan(calibration_error(torch.tensor([float("nan"), 1.0]), torch.ones(2), 1))
    assert math.isnan(calibration_error(torch.empty(0), torch.empty(0), 1))
    assert [usable_bins(n, 15) for n in (9, 10, 37, 1000)] == [0, 1, 3, 15]


def test_brier_against_scikit_learn() -> None:
    pytest.importorskip("sklearn", minversion="1.7", reason="of several classes")
    logits, targets = 3 * noise(200, 4), torch.arange(200) % 4
    p = class_probabilities(logits)
    expected = brier_score_loss(targets.numpy(), p.numpy(), labels=[0, 1, 2, 3], scale_by_half=False)
    assert float(brier_scores(p, targets).mean()) == pytest.approx(expected, rel=1e-10)
    single = class_probabilities(logits[:, :1])
    assert torch.allclose(single[:, 1], torch.sigmoid(logits[:, 0].double()))
    assert torch.equal(class_probabilities(logits[:, 0]), single)
    assert class_probabilities(torch.tensor([[40.0]]))[0, 0] > 0  # 1 − sigmoid would be lost


def test_membership_auc_against_scikit_learn() -> None:
    train, test = noise(80).round(decimals=1), noise(70, seed=1).round(decimals=1) + 0.4
    assert len(set(train.tolist()) & set(test.tolist())) > 5  # there are ties
    labels, scores = np.r_[np.ones(80), np.zeros(70)], -np.r_[train.numpy(), test.numpy()]
    assert membership_auc(train, test) == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)
    assert membership_auc(torch.zeros(5), torch.zeros(3)) == 0.5
    assert math.isnan(membership_auc(torch.tensor([1.0, float("nan")]), test))
    assert math.isnan(membership_auc(torch.empty(0), test))
