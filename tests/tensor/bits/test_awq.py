"""AWQ's factors against the authors' search in float64, and what it promises beside round-to-nearest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from learnscope.tensor.bits.awq import quantize_awq
from learnscope.tensor.bits.methods import METHODS, quantize_by
from learnscope.tensor.bits.quantize import QuantiseError, Scheme, dequantize, quantize
from learnscope.tensor.bits.statistics import InputStatistics


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def uneven(tokens: int = 200, inputs: int = 24) -> Tensor:
    return drawn(tokens, inputs, seed=1) * torch.logspace(-1.5, 1.5, inputs)


def error(weight: Tensor, made: Tensor, x: Tensor) -> float:
    return float(((made.double() - weight.double()) @ x.double().T).square().sum())


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_search_on_the_outputs_themselves(symmetric: bool) -> None:
    """x·Wᵀ against (x/s)·Q(W·s)ᵀ in NumPy, for every exponent: the least error is the one that was reached."""
    scheme = Scheme(symmetric, scale_dtype=torch.float64, input_scales=True)
    weight, x = drawn(8, 24).double(), uneven().double()
    w, outputs = weight.numpy(), (x @ weight.T).numpy()
    for bits in (3, 4):
        errors = []
        for step in range(21):
            s = x.abs().mean(0).numpy() ** (step / 20)
            s = s / np.sqrt(s.max() * s.min())
            scaled = w * s
            low, high = np.minimum(scaled.min(1), 0)[:, None], np.maximum(scaled.max(1), 0)[:, None]
            most = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
            scale = np.maximum(-low, high) / most if symmetric else (high - low) / most
            zero = 0 if symmetric else np.round(-low / scale)
            codes = np.clip(np.round(scaled / scale) + zero, -most if symmetric else 0, most)
            errors.append((((x.numpy() / s) @ ((codes - zero) * scale).T - outputs) ** 2).sum())
        made = dequantize(quantize_awq(weight, bits, scheme, InputStatistics.of(x)))
        np.testing.assert_allclose(error(weight, made, x), min(errors), rtol=1e-9)
        assert min(errors) < 0.8 * errors[0]


def test_never_above_round_to_nearest_on_awkward_inputs() -> None:
    """1e-4 of room: the gram of float32 inputs is summed in float32."""
    dead = uneven()
    dead[:, ::4] = 0
    weight = drawn(8, 24)
    weight[1], weight[2], weight[3] = 0, 0.3, weight[3] * 1e-20
    for x in (uneven(), dead, uneven(2), torch.zeros(4, 24), uneven() * 1e-12):
        for scheme in (Scheme(), Scheme(granularity="tensor"), Scheme(granularity="group", group_size=7)):
            for held in (weight, weight.half(), weight[:1]):
                for bits in (2, 3, 4, 8):
                    made = quantize_by("awq", held, bits, scheme, InputStatistics.of(x))
                    assert made.inputs is not None
                    assert made.inputs.shape == (24,)
                    assert dequantize(made).dtype == held.dtype
                    plain = error(held, dequantize(quantize(held, bits, scheme)), x)
                    assert error(held, dequantize(made), x) <= plain * (1 + 1e-4)


def test_without_inputs_the_factors_are_one_and_the_numbers_the_nearest() -> None:
    weight = drawn(5, 12)
    made = quantize_by("awq", weight, 4)
    assert made.inputs is not None
    assert torch.equal(made.inputs, torch.ones(12))
    assert torch.equal(dequantize(made), dequantize(quantize(weight, 4)))


def test_weights_near_the_largest_number_are_not_broken_by_factors() -> None:
    weight = drawn(3, 24) * 8e37
    made = dequantize(quantize_by("awq", weight, 4, Scheme(), InputStatistics.of(uneven())))
    assert made.isfinite().all()


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.package is None])
def test_every_method_keeps_the_form(method: str) -> None:
    weight, statistics = drawn(6, 24), InputStatistics.of(uneven())
    for bits in (2, 4, 8):
        made, plain = quantize_by(method, weight, bits, inputs=statistics), quantize(weight, bits)
        assert (made.codes.shape, made.codes.dtype) == (plain.codes.shape, plain.codes.dtype)
        assert made.scale is not None
        assert plain.scale is not None
        assert (made.scale.shape, made.scale.dtype) == (plain.scale.shape, plain.scale.dtype)
        assert (made.zero is None) == (plain.zero is None)
    assert torch.equal(quantize_by(method, weight, 16, inputs=statistics).codes, weight.half())
    assert dequantize(quantize_by(method, weight[:0], 4, inputs=statistics)).shape == (0, 24)
    assert METHODS[method].description
    with pytest.raises(QuantiseError, match="NaN or Inf"):
        quantize_by(method, weight / 0, 4, inputs=statistics)
    if METHODS[method].needs_calibration:
        with pytest.raises(QuantiseError, match="20 input features and statistics of 24"):
            quantize_by(method, weight[:, :20], 4, inputs=statistics)


def test_the_error_of_the_outputs_over_more_inputs_than_are_multiplied_at_a_time() -> None:
    """Of 300 inputs, of which the last band has 44: the sum over the tokens themselves."""
    x, change = drawn(400, 300, seed=2), drawn(5, 300, seed=3)
    found = InputStatistics.of(x.double()).output_error(change)
    torch.testing.assert_close(found, (change.double() @ x.double().T).square().sum(1), rtol=1e-12, atol=0)
