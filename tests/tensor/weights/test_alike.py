"""Weights of which all units are copies of one."""

from __future__ import annotations

import pytest
import torch

from learnscope.tensor.weights.alike import units_alike


@pytest.mark.parametrize(
    ("weight", "alike"),
    [
        (torch.full((4, 3), 0.05), True),
        (torch.arange(3.0).repeat(4, 1), True),
        (torch.full((4, 2, 3, 3), 0.1), True),
        (torch.randn(4, 3), False),
        (torch.zeros(4, 3), False),
        (torch.ones(1, 3), False),
        (torch.ones(4), False),
        (torch.cat([torch.ones(3, 3), torch.zeros(1, 3)]), False),
        (torch.ones(4, 3, device="meta"), False),
        (torch.ones(4, 3, dtype=torch.int64), False),
    ],
)
def test_units_alike(weight: torch.Tensor, alike: bool) -> None:
    assert units_alike(weight) is alike
