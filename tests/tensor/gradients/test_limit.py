"""Entries of a gradient that were cut to one size."""

from __future__ import annotations

import math

import pytest
import torch

from learnscope.tensor.gradients.gradient import GradientTable, gradient_statistics, sum_squares
from learnscope.tensor.gradients.limit import limit_share


def share(*gradients: torch.Tensor) -> float:
    """The same whether the entries have been counted or not."""
    found = limit_share(gradients, gradient_statistics(gradients))
    again = limit_share(gradients, GradientTable.uncounted(sum_squares(gradients)))
    assert found is not None
    assert again is not None
    torch.testing.assert_close(again, found, rtol=0, atol=0, equal_nan=True)
    return float(found)


def test_a_clip_by_value() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(50, 20)
    expected = float((gradient.abs() >= 0.1).double().mean())
    assert share(gradient.clamp(-0.1, 0.1)) == expected
    assert share(gradient) == 1 / 1000


def test_zeros_do_not_count_and_the_largest_tensor_does() -> None:
    assert share(torch.tensor([0.0] * 18 + [0.5, -0.5]), torch.randn(16)) == 1.0


def test_what_cannot_be_looked_at() -> None:
    assert limit_share([torch.ones(3)], gradient_statistics([torch.ones(3)])) is None
    assert math.isnan(share(torch.zeros(20)))
    assert math.isnan(share(torch.full((20,), torch.inf)))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_kind_of_number_and_order_in_memory(kind: torch.dtype) -> None:
    torch.manual_seed(1)
    values = torch.randn(24, 30).clamp(-0.75, 1.5)
    values[::3] = 0
    gradient = values.to(kind).t()
    sizes = gradient.double().abs()
    assert share(gradient) == int((sizes == sizes.max()).sum()) / int((sizes != 0).sum())
    gradient[3, 4] = torch.nan
    assert math.isnan(share(gradient))
    gradient[3, 4] = -torch.inf
    assert math.isnan(share(gradient))
