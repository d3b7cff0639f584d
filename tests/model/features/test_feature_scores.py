"""Silhouette and linear probe, against scikit-learn called otherwise and against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from learnscope.model.features.representation import (
    STRENGTHS,
    largest_class_share,
    linear_probe,
    ridge_decisions,
    silhouette,
)


def clusters(n: int, classes: int, d: int, apart: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = apart * torch.randn(classes, d, generator=generator)
    return centres[labels] + torch.randn(n, d, generator=generator), labels


def silhouette_by_loop(x: Tensor, labels: Tensor) -> float:
    apart, y = cdist(x.double().numpy(), x.double().numpy()), labels.numpy()
    each = []
    for i in range(len(y)):
        own = (y == y[i]) & (np.arange(len(y)) != i)
        if not own.any():
            each.append(0.0)
            continue
        a = apart[i, own].mean()
        b = min(apart[i, y == c].mean() for c in set(y.tolist()) - {y[i]})
        each.append((b - a) / max(a, b))
    return float(np.mean(each))


def test_silhouette_against_a_loop() -> None:
    x, labels = clusters(40, 3, 5, 1.0)
    labels[7] = 9  # alone in its class
    found = silhouette(x, labels)
    assert found.value == pytest.approx(silhouette_by_loop(x, labels), rel=1e-9)
    assert (found.examples, found.reason) == (40, None)


def test_silhouette_of_many_is_that_of_a_fixed_subset() -> None:
    x, labels = clusters(3000, 4, 6, 1.5)
    state = np.random.get_state()[1].copy()
    first = silhouette(x, labels, limit=300)
    assert silhouette(x, labels, limit=300) == first
    assert first.examples == 300
    assert first.value != silhouette(x, labels, limit=300, seed=1).value
    whole = silhouette(x, labels, limit=3000)
    assert whole.examples == 3000
    assert first.value == pytest.approx(whole.value, abs=0.03)
    assert (np.random.get_state()[1] == state).all()


def test_what_has_no_silhouette_says_why() -> None:
    x, labels = clusters(12, 3, 2, 1.0)
    for few in (torch.zeros(12), torch.arange(12)):
        found = silhouette(x, few)
        assert found.value is None
        assert "fewer classes than examples" in str(found.reason)
    x[3, 1] = float("inf")
    assert silhouette(x, labels).reason == "features are not finite"


def test_linear_probe_is_held_out() -> None:
    """More dimensions than examples: any labels are separable, but only those held out tell."""
    generator = torch.Generator().manual_seed(3)
    x, labels = torch.randn(200, 400, generator=generator), torch.arange(200) % 2
    assert linear_probe(x, labels).value == pytest.approx(0.5, abs=0.12)
    x[:, 0] = labels.float() * 6  # one direction that tells, far larger in no unit
    x[:, 1:] *= 1e3
    assert linear_probe(x[:, :20], labels).value == pytest.approx(1.0)  # standardised: size does not count


def test_linear_probe_against_ridge_by_hand() -> None:
    """The same folds, the ridge solved in closed form by NumPy with the strength that leave-one-out chooses."""
    from sklearn.model_selection import StratifiedKFold

    x, labels = clusters(120, 2, 6, 0.5, seed=4)
    rows, y = x.double().numpy(), labels.numpy()
    right = 0
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(rows, y):
        mean, std = rows[train].mean(0), rows[train].std(0)
        a, b, t = (rows[train] - mean) / std, (rows[test] - mean) / std, 2.0 * y[train] - 1
        losses = {}
        for strength in (1.0, 10.0, 100.0, 1e3, 1e4):
            hat = a @ np.linalg.solve(a.T @ a + strength * np.eye(6), a.T) + 1 / len(t)
            losses[strength] = (((t - hat @ (t - t.mean()) - t.mean()) / (1 - np.diag(hat))) ** 2).mean()
        best = min(losses, key=losses.__getitem__)
        w = np.linalg.solve(a.T @ a + best * np.eye(6), a.T @ (t - t.mean()))
        right += int((((b @ w + t.mean()) > 0) == y[test]).sum())
    found = linear_probe(x, labels)
    assert found.value == pytest.approx(right / 120, abs=1e-12)
    assert 0.6 < right / 120 < 1


def test_small_classes_are_left_out_of_the_probe() -> None:
    x, labels = clusters(60, 3, 4, 8.0)
    labels[:4] = 10  # one class of four: not one for each fold
    found = linear_probe(x, labels)
    assert found.examples == 56
    assert found.value == 1.0
    assert largest_class_share(labels) == pytest.approx(19 / 56)
    for y, word in (
        (torch.zeros(60), "1 of 1 are large enough"),
        (torch.arange(60), "0 of 60 are large enough, with 0 of 60 examples"),
        (torch.cat([torch.arange(10) % 2, torch.arange(50) + 5]), "with 10 of 60 examples"),
    ):
        refused = linear_probe(x, y)
        assert refused.value is None
        assert word in str(refused.reason)
    assert largest_class_share(torch.arange(60)) is None
    x[0, 0] = float("nan")
    assert linear_probe(x, labels).reason == "features are not finite"


def test_constant_features_are_worth_guessing() -> None:
    labels = (torch.arange(100) % 10 == 0).long()
    found = linear_probe(torch.ones(100, 3), labels)
    assert found.value == pytest.approx(largest_class_share(labels)) == pytest.approx(0.9)


@pytest.mark.parametrize(("n", "d", "classes"), [(60, 200, 4), (60, 200, 2), (50, 50, 3), (90, 7, 5), (40, 12, 2)])
def test_ridge_decisions_are_those_of_scikit_learn(n: int, d: int, classes: int) -> None:
    """For wide, square and long features, with a constant column and two equal ones, at every strength chosen."""
    from sklearn.linear_model import RidgeClassifierCV

    chosen = set()
    for apart in (0.05, 0.5, 3.0):
        x, labels = clusters(n + 15, classes, d, apart, seed=n + d)
        rows, y = x.double().numpy(), labels.numpy()
        rows[:, 2], rows[:, 3] = 7.0, rows[:, 4]
        expected = RidgeClassifierCV(alphas=STRENGTHS).fit(rows[:n], y[:n])
        chosen.add(expected.alpha_)
        found = ridge_decisions(rows[:n], y[:n], rows[n:], STRENGTHS)
        np.testing.assert_allclose(found, expected.decision_function(rows[n:]), atol=1e-8)
        for strength in STRENGTHS:
            alone = RidgeClassifierCV(alphas=[strength]).fit(rows[:n], y[:n]).decision_function(rows[n:])
            np.testing.assert_allclose(ridge_decisions(rows[:n], y[:n], rows[n:], [strength]), alone, atol=1e-8)
    assert len(chosen) > 1  # otherwise the choice is not tested


@pytest.mark.parametrize(("n", "d", "classes"), [(103, 300, 3), (200, 9, 4), (80, 40, 2)])
def test_linear_probe_is_the_cross_validated_pipeline(n: int, d: int, classes: int) -> None:
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, labels = clusters(n, classes, d, 0.3, seed=1)
    x[:, 1], labels = 0.25, labels * 10 - 7  # a constant column; labels that are no places
    model = make_pipeline(StandardScaler(), RidgeClassifierCV(alphas=STRENGTHS))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    said = cross_val_predict(model, x.double().numpy(), labels.numpy(), cv=folds)
    right = float((said == labels.numpy()).mean())
    assert linear_probe(x, labels).value == pytest.approx(right, abs=1e-12)
    assert 1 / classes < right < 1


def test_threads_of_others_are_as_they_were() -> None:
    from threadpoolctl import threadpool_info

    before = [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    linear_probe(*clusters(60, 2, 30, 1.0))
    assert [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()] == before
