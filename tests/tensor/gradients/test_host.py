"""Gradients in the memory of the host: the same numbers as a reference in float64, whatever is in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope import native
from learnscope.tensor.gradients.gradient import gradient_statistics
from learnscope.tensor.gradients.host import MOST_COPIED, host_statistics
from learnscope.tensor.gradients.limit import limit_share

pytestmark = pytest.mark.skipif(native.kernels is None, reason="no compiled kernels here")

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
        sizes = np.abs(values[~np.isnan(values)])
        largest = sizes.max(initial=0)
        as_large = (sizes == largest).sum() if np.isfinite(values).all() and largest else None
        return [
            float((values**2).sum()),
            *map(float, counts),
            float(largest),
            math.nan if as_large is None else as_large,
        ]


def check(group: list[Tensor]) -> None:
    found = host_statistics(group)
    assert found is not None
    np.testing.assert_allclose(found, np.array([reference(tensor) for tensor in group]).T, rtol=1e-12)


def test_every_kind_alone_and_all_together() -> None:
    torch.manual_seed(0)
    tensors = [make() for make in AWKWARD.values()]
    for tensor in tensors:
        check([tensor])
    check(tensors)


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


def test_large_ones_alone_and_among_small_ones() -> None:
    torch.manual_seed(0)
    tensors, small = [make() for make in LARGE.values()], [make() for make in AWKWARD.values()]
    for tensor in tensors:
        check([tensor])
    check([part for pair in zip(tensors, [*small, *small], strict=False) for part in pair])


def test_empty_ones_are_zero() -> None:
    found = host_statistics([torch.zeros(0), torch.ones(2), torch.zeros(3, 0)])
    assert found is not None
    np.testing.assert_array_equal(found.T, [[0, 0, 0, 0, 0, math.nan], [2, 0, 0, 0, 1, 2], [0, 0, 0, 0, 0, math.nan]])


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [torch.ones(2), torch.ones(1).expand(MOST_COPIED + 1)],
        [torch.ones(3, dtype=torch.bfloat16)],
        [torch.ones(3, dtype=torch.complex64)],
        [torch.ones(3).to_sparse()],
        [torch.ones(3, device="meta")],
        [torch._neg_view(torch.ones(3))],
    ],
)  # fmt: skip
def test_others_are_left_to_the_rows(tensors: list[Tensor]) -> None:
    assert host_statistics(tensors) is None


def test_without_kernels_the_rows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    tensors = [make() for make in [*AWKWARD.values(), *LARGE.values()]]
    by_kernel = gradient_statistics(tensors)
    monkeypatch.setattr(native, "kernels", None)
    assert host_statistics(tensors) is None
    by_rows = gradient_statistics(tensors)
    torch.testing.assert_close(by_rows.sum_squares, by_kernel.sum_squares, rtol=1e-6, atol=0, equal_nan=True)
    for counts in ("zeros", "nan", "inf"):
        assert getattr(by_rows, counts).tolist() == getattr(by_kernel, counts).tolist()
    assert by_rows.at_largest.isnan().all()
    shares = [limit_share(tensors, table) for table in (by_kernel, by_rows)]
    torch.testing.assert_close(*shares, rtol=0, atol=0)


def test_numbers_do_not_depend_on_torchs_threads() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1500, 1000), torch.randn(7)]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(host_statistics(tensors))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
