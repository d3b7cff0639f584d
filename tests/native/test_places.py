"""Kernels read tensors where they are, by their addresses: what has none that can be read goes another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learnscope.tensor.gradients.host import host_statistics
from learnscope.tensor.host import arrays_of, places_of
from native_builds import builds, needed


@needed
def test_a_place_is_as_good_as_an_array() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(n) for n in (0, 1, 17, 70_000)] + [torch.randn(5, 7).double(), torch.zeros(3)]
    tensors += [torch.randn(5, 7).t(), torch.tensor([1.0, float("nan"), float("inf")])]
    places, arrays = places_of(tensors, turned=True), arrays_of(tensors)
    assert places is not None
    assert arrays is not None
    for build in builds():
        found = [np.empty((6, len(tensors))) for _ in range(3)]
        for out, given, threads in zip(found, (places, arrays, places), (1, 1, 3), strict=True):
            build.gradient_sums(given, out, threads)
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


@needed
@pytest.mark.parametrize(
    "place",
    [
        (8, 3, 4), (1 << 40, -1, 4), (1 << 40, 3, 2), ((1 << 40) + 1, 3, 4), ((1 << 40) + 4, 3, 8), (1 << 40, 2**62, 8),
        (1 << 70, 3, 4), ("a", 3, 4), (None, 3, 4), (1.5, 3, 4), (-4, 3, 4), (1 << 40, 3), (),
    ],
)  # fmt: skip
def test_what_is_no_place_is_refused(place: tuple[Any, ...]) -> None:
    out = np.full((6, 2), 7.0)
    for build in builds():
        with pytest.raises((TypeError, OverflowError, BufferError)):
            build.gradient_sums([np.ones(3, np.float32), place], out, 1)
    assert (out == 7.0).all()


def test_tensors_that_have_no_place() -> None:
    plain = torch.ones(4)
    strange = [
        torch.ones(4, dtype=torch.float16), torch.ones(4, dtype=torch.int64), torch.ones(8)[::2], torch.ones(3, 4).t(),
        torch.ones(4, device="meta"), torch.ones(2, 2).to_sparse(), torch.ones(2, 2).to_sparse_csr(),
        torch.complex(plain, plain).conj().imag, torch._efficientzerotensor(4), torch.ones(2, 2, 2).transpose(0, 2),
        torch.ones(2, 3).to_mkldnn(),
    ]  # fmt: skip
    for tensor in strange:
        assert places_of([plain, tensor]) is None, tensor.layout
    assert places_of([plain, torch.func.vmap(lambda x: x)(plain)]) is not None
    seen: list[Any] = []

    def look(x: Tensor) -> Tensor:
        seen.append(places_of([x]))
        return x

    torch.func.vmap(look)(plain)
    assert seen == [None]
    assert places_of([nn.Parameter(plain)]) == [(plain.data_ptr(), 4, 4)]


@needed
def test_statistics_of_tensors_without_a_place_are_the_same() -> None:
    torch.manual_seed(0)
    for tensor in (torch.randn(8)[::2], torch.randn(2, 3, 4).transpose(0, 2), torch.randn(4, 6)[:, 1:3]):
        found, copied = host_statistics([tensor]), host_statistics([tensor.contiguous()])
        assert found is not None
        np.testing.assert_array_equal(found, copied)
