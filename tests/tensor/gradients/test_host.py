"""Gradients in the memory of the host: the same numbers as a reference in float64, whatever is in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.tensor.gradients.host import FEW, MOST, host_statistics

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
        found = host_statistics(group, counting=counting)
        assert found is not None
        expected = np.array([reference(tensor) for tensor in group]).T
        np.testing.assert_allclose(found, expected if counting else expected[:1], rtol=1e-12)


def with_bad_rows(*values: float) -> Tensor:
    """16 rows, of which some begin with such a value, and one is of zeros."""
    tensor = torch.randn(16, 512)
    for row, value in enumerate(values):
        tensor[3 * row, 0] = value
    tensor[15] = 0
    return tensor


def embedding() -> Tensor:
    """Most tokens are not in the batch."""
    tensor = torch.zeros(700, 96)
    tensor[::9] = torch.randn(78, 96)
    return tensor


LARGE = {
    "whole rows": lambda: torch.randn(64, 512),
    "rows and a tail": lambda: torch.randn(131, 97),
    "more than are cached": lambda: torch.randn(600, 512),
    "transposed": lambda: torch.randn(70, 90).t(),
    "equal entries": lambda: torch.full((16, 1024), 0.1),
    "some zeros": lambda: torch.randn(5000).relu(),
    "zeros": lambda: torch.zeros(40, 512),
    "embedding": embedding,
    "tiny": lambda: torch.randn(9, 512) * 1e-25,
    "smallest": lambda: torch.randn(9, 512) * 1e-40,
    "huge": lambda: torch.randn(9, 512) * 1e25,
    "tiny and huge rows": lambda: torch.randn(40, 512) * torch.logspace(-35, 35, 40)[:, None],
    "not finite": lambda: with_bad_rows(math.nan, math.inf, -math.inf, 1e38),
    "parameter": lambda: nn.Parameter(torch.randn(5000)),
    "inference": lambda: torch.inference_mode()(torch.randn)(4097),
}


@pytest.mark.parametrize("counting", [True, False])
def test_large_ones_alone_and_among_small_ones(counting: bool) -> None:
    """Rows are squared in float32, whose sums are right to 1e-6 even if all entries are equal."""
    torch.manual_seed(0)
    tensors = {name: make() for name, make in LARGE.items()}
    padding = torch.randn(FEW)  # so that there are never few
    small = [make() for make in AWKWARD.values()]
    groups = [[padding, tensor] for tensor in tensors.values()]
    groups.append([part for pair in zip(tensors.values(), [*small, *small], strict=False) for part in pair])
    for group in groups:
        found = host_statistics(group, counting=counting)
        assert found is not None
        expected = np.array([reference(tensor) for tensor in group]).T
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
        np.testing.assert_array_equal(found[1:], expected[1:] if counting else expected[1:1])


def test_empty_ones_are_zero() -> None:
    found = host_statistics([torch.zeros(0), torch.ones(2), torch.zeros(3, 0)], counting=True)
    assert found is not None
    assert found.T.tolist() == [[0, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]]


def test_more_small_ones_than_are_joined_at_a_time() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(size) for size in range(3900, 3920)]
    found = host_statistics(tensors, counting=True)
    assert found is not None
    np.testing.assert_allclose(found, np.array([reference(tensor) for tensor in tensors]).T, rtol=1e-12)


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [torch.ones(1).expand(MOST)],
        [torch.ones(2 * FEW)[::2], torch.ones(FEW)],
        [torch.ones(2 * FEW, dtype=torch.float64)],
        [torch.ones(3, dtype=torch.bfloat16)],
        [torch.ones(3, dtype=torch.complex64)],
        [torch.ones(3).to_sparse()],
        [torch.ones(3, device="meta")],
        [torch._neg_view(torch.ones(3))],
    ],
)  # fmt: skip
def test_others_are_left_to_the_rows(tensors: list[Tensor]) -> None:
    assert host_statistics(tensors, counting=True) is None
    assert host_statistics(tensors, counting=False) is None
