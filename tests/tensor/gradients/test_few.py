"""Few, small gradients: the same numbers as a reference in float64, whatever is in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.tensor.gradients.few import FEW, few_statistics

AWKWARD = {
    "ordinary": lambda: torch.randn(7, 5),
    "one number": lambda: torch.tensor(3.0),
    "zeros": lambda: torch.zeros(9),
    "some zeros": lambda: torch.tensor([0.0, -0.0, 1.0, 0.0]),
    "tiny": lambda: torch.full((11,), 1e-30),
    "huge": lambda: torch.full((11,), 1e30),
    "nan and inf": lambda: torch.tensor([math.nan, math.inf, -math.inf, 1.0, 0.0]),
    "transposed": lambda: torch.randn(4, 6).t(),
    "every other": lambda: torch.randn(20)[::2],
    "expanded": lambda: torch.tensor([2.0]).expand(5),
    "double": lambda: torch.randn(8, dtype=torch.float64) * 1e-200,
    "parameter": lambda: nn.Parameter(torch.randn(3)),
    "with a graph": lambda: torch.randn(3, requires_grad=True) * 2,
}


def reference(tensor: Tensor) -> list[float]:
    values = tensor.detach().double().numpy()
    with np.errstate(all="ignore"):
        counts = [(values == 0).sum(), np.isnan(values).sum(), np.isinf(values).sum()]
        return [float((values**2).sum()), *map(float, counts)]


@pytest.mark.parametrize("counting", [True, False])
def test_every_kind_alone_and_all_together(counting: bool) -> None:
    torch.manual_seed(0)
    tensors = {name: make() for name, make in AWKWARD.items()}
    groups = [[tensor] for tensor in tensors.values()] + [list(tensors.values())]
    for group in groups:
        found = few_statistics(group, counting=counting)
        assert found is not None
        expected = np.array([reference(tensor) for tensor in group]).T
        np.testing.assert_allclose(found, expected if counting else expected[:1], rtol=1e-12)


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [torch.zeros(0), torch.ones(2)],
        [torch.ones(FEW + 1)],
        [torch.ones(3, dtype=torch.bfloat16)],
        [torch.ones(3, dtype=torch.complex64)],
        [torch.ones(3).to_sparse()],
        [torch.ones(3, device="meta")],
        [torch._neg_view(torch.ones(3))],
    ],
)  # fmt: skip
def test_others_are_left_to_the_rows(tensors: list[Tensor]) -> None:
    assert few_statistics(tensors, counting=True) is None
