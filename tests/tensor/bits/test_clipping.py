"""Clipping by least squared error: never worse than round-to-nearest, and the best of its candidates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from learnscope.tensor.bits.clipping import SHARES, quantize_clipped
from learnscope.tensor.bits.quantize import Granularity, QuantiseError, Scheme, dequantize, quantize

GRANULARITIES: tuple[Granularity, ...] = ("tensor", "channel", "group")


def awkward() -> Tensor:
    """Ordinary rows, one with an outlier, zero, constant, of one sign, tiny and huge ones."""
    drawn = torch.randn(9, 37, generator=torch.Generator().manual_seed(0))
    drawn[1, 3] = 30.0
    drawn[2] = 0
    drawn[3] = 0.7
    drawn[4] = drawn[4].abs() + 3
    drawn[5] *= 1e-30
    drawn[6] *= 5e37
    drawn[7] = 0
    drawn[7, 20] = -2.5
    return drawn


def squared(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).square().sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_squared_error_is_never_above_that_of_rounding_to_nearest(symmetric: bool, dtype: torch.dtype) -> None:
    weight = awkward()
    weight[5:7] = weight[5:7] / weight[5:7].abs().amax() * (1.0 if dtype == torch.float16 else 1e38)
    weight = weight.to(dtype)
    for granularity in GRANULARITIES:
        scheme = Scheme(symmetric, granularity, group_size=8)
        for bits in range(2, 9):
            plain, clipped = quantize(weight, bits, scheme), quantize_clipped(weight, bits, scheme)
            for name in ("codes", "scale", "zero"):  # the same form: files and ledgers need not know
                ours, theirs = getattr(clipped, name), getattr(plain, name)
                assert ours is theirs is None or (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            rows = range(1) if granularity == "tensor" else range(len(weight))
            for row in rows:
                part = slice(None) if granularity == "tensor" else row
                error = squared(dequantize(clipped)[part], weight[part])
                assert error <= squared(dequantize(plain)[part], weight[part]) * (1 + 1e-12)


def test_an_outlier_is_cut_where_that_is_worth_it() -> None:
    weight = torch.randn(1, 256, generator=torch.Generator().manual_seed(1))
    weight[0, 0] = 6.0
    plain, clipped = (dequantize(by(weight, 3, Scheme(True))) for by in (quantize, quantize_clipped))
    assert squared(clipped, weight) < 0.7 * squared(plain, weight)
    assert clipped[0, 0] < plain[0, 0] == 6.0


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_best_candidate_in_float64(symmetric: bool) -> None:
    """Every candidate by the definitions in NumPy: no share of the range has less error than the one that was taken."""
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for bits in (2, 3, 4):
        scheme = Scheme(symmetric, scale_dtype=torch.float64)
        got = dequantize(quantize_clipped(weight, bits, scheme))
        for row, made in zip(weight.numpy(), got.numpy(), strict=True):
            errors = []
            for share in SHARES:
                low, high = min(row.min(), 0.0) * share, max(row.max(), 0.0) * share
                if symmetric:
                    most = 2 ** (bits - 1) - 1
                    step = max(-low, high) / most
                    restored = np.clip(np.round(row / step), -most, most) * step
                else:
                    most = 2**bits - 1
                    step = (high - low) / most
                    zero = np.round(-low / step)
                    restored = (np.clip(np.round(row / step) + zero, 0, most) - zero) * step
                errors.append(((row - restored) ** 2).sum())
            np.testing.assert_allclose(((row - made) ** 2).sum(), min(errors), rtol=1e-12)


def test_half_precision_empty_weights_and_refusals() -> None:
    weight = awkward()[:2]
    assert torch.equal(quantize_clipped(weight, 16).codes, weight.half())
    for shape in ((0, 4), (3, 0)):
        assert dequantize(quantize_clipped(torch.zeros(shape), 4)).shape == shape
    for bad in (float("nan"), float("inf")):
        with pytest.raises(QuantiseError, match="1 of its 2 entries are NaN or Inf"):
            quantize_clipped(torch.tensor([[1.0, bad]]), 4)
    with pytest.raises(QuantiseError, match="bits=9"):
        quantize_clipped(weight, 9)
