"""Q and R of factors, against what they must satisfy and against reflections."""

import pytest
import torch
from torch import Tensor

from learnscope.tensor.adapters.orthonormal import orthonormal


def factor(d: int, k: int, condition: float, seed: int) -> Tensor:
    """With singular values from 1 down to 1/condition."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.linalg.qr(torch.randn(d, k, generator=generator, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64)).Q
    return u * torch.logspace(0, -torch.tensor(condition).log10().item(), k, dtype=torch.float64) @ v.mT


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1.0, 1e30])
def test_columns_are_orthonormal_whatever_the_condition(scale: float) -> None:
    conditions = [1.0, 3.0, 30.0, 100.0, 1e4, 1e8, 1e12]
    factors = scale * torch.stack([factor(60, 5, condition, n) for n, condition in enumerate(conditions)])
    q, r = orthonormal(factors)
    unit = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(q.mT @ q, unit.expand(len(factors), 5, 5), rtol=0, atol=2e-12)
    torch.testing.assert_close((q @ r) / scale, factors / scale, rtol=0, atol=1e-13)
    assert torch.equal(r, r.triu())
    assert q.stride()[1:] == (5, 1)
    sigma, truth = torch.linalg.svdvals(r / scale), torch.linalg.svdvals(factors / scale)
    torch.testing.assert_close(sigma[:5], truth[:5], rtol=1e-9, atol=0)  # up to a condition of 1e4


def test_a_factor_does_not_depend_on_those_beside_it() -> None:
    factors = torch.stack([factor(40, 4, condition, 1) for condition in (2.0, 1e9, 5.0)])
    factors = torch.cat([factors, torch.zeros(1, 40, 4, dtype=torch.float64), torch.full_like(factors[:1], torch.nan)])
    q, r = orthonormal(factors)
    for place in range(len(factors)):
        alone = orthonormal(factors[place : place + 1])
        assert torch.equal(alone[0][0].nan_to_num(7.0), q[place].nan_to_num(7.0))
        assert torch.equal(alone[1][0].nan_to_num(7.0), r[place].nan_to_num(7.0))
    assert not r[3].any()
    assert bool(r[4].isnan().any())


def test_more_columns_than_rows() -> None:
    wide = torch.randn(2, 3, 7, dtype=torch.float64)
    q, r = orthonormal(wide)
    assert q.shape == (2, 3, 3)
    torch.testing.assert_close(q @ r, wide)
    assert orthonormal(wide[:0])[0].shape == (0, 3, 3)
