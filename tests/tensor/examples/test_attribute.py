"""Attribute and class against SciPy and counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats.contingency import association
from scipy.stats.contingency import crosstab as scipy_crosstab

from learnscope.tensor.examples.attribute import cramers_v, crosstab, following, suggested_classes


def drawn(seed: int, n: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(rows, (n,), generator=generator), torch.randint(columns, (n,), generator=generator)


@pytest.mark.parametrize(("n", "rows", "columns"), [(1, 1, 1), (7, 2, 3), (500, 10, 4), (5000, 3, 30)])
def test_counts(n: int, rows: int, columns: int) -> None:
    a, b = drawn(n, n, rows, columns)
    expected = scipy_crosstab(a.numpy(), b.numpy(), levels=(range(rows), range(columns)))
    assert crosstab(a, b, (rows, columns)).tolist() == expected.count.tolist()
    empty = torch.tensor([], dtype=torch.int64)
    assert crosstab(empty, empty, (2, 3)).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("seed", range(8))
def test_cramers_v_is_scipys(seed: int) -> None:
    random = np.random.default_rng(seed)
    table = random.integers(1, 40, size=random.integers(2, 9, 2))
    table[0, 0] += seed * 100
    assert cramers_v(torch.tensor(table)) == pytest.approx(association(table, method="cramer"), rel=1e-12)
    holes = np.zeros((table.shape[0] + 2, table.shape[1] + 1), dtype=np.int64)  # SciPy refuses empty rows
    holes[1:-1, 1:] = table
    assert cramers_v(torch.tensor(holes)) == pytest.approx(association(table, method="cramer"), rel=1e-12)


def test_cramers_v_at_its_ends() -> None:
    assert cramers_v(torch.diag(torch.tensor([5, 9, 2]))) == pytest.approx(1)
    assert cramers_v(torch.tensor([[2, 4], [3, 6], [10, 20]])) == pytest.approx(0, abs=1e-9)
    for table in ([[3, 4]], [[3], [4]], [[0, 0], [0, 0]], [[0, 0], [5, 1]]):
        assert math.isnan(cramers_v(torch.tensor(table)))
    huge = torch.tensor([[3 * 10**15, 10**15], [10**15, 3 * 10**15]])
    assert cramers_v(huge) == pytest.approx(0.5)


def test_the_class_that_a_value_suggests() -> None:
    table = torch.tensor([[1, 5, 0], [3, 3, 1], [0, 0, 0], [0, 0, 7], [2, 2, 2]])
    assert suggested_classes(table).tolist() == [1, -1, -1, 2, -1]
    assert suggested_classes(torch.zeros(2, 0, dtype=torch.int64)).tolist() == [-1, -1]


@pytest.mark.parametrize("seed", range(5))
def test_following_by_hand(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    n, classes = 300, 5
    suggested = torch.randint(-1, classes, (n,), generator=generator)
    targets = torch.randint(classes, (n,), generator=generator)
    predicted = torch.randint(-1, classes, (n,), generator=generator)  # -1: a NaN predicts nothing
    found = following(suggested, targets, predicted)
    aligned = [[0, 0] for _ in range(classes)]
    conflicting = [[0, 0] for _ in range(classes)]
    followed = undecided = 0
    for s, y, p in zip(suggested.tolist(), targets.tolist(), predicted.tolist(), strict=True):
        if s < 0:
            undecided += 1
            continue
        side = aligned if s == y else conflicting
        side[y][0] += p == y
        side[y][1] += 1
        followed += s != y and p == s
    assert found.aligned.tolist() == aligned
    assert found.conflicting.tolist() == conflicting
    assert (found.followed, found.undecided) == (followed, undecided)
    none = torch.tensor([], dtype=torch.int64)
    assert following(none, none, none).aligned.shape == (0, 2)
