"""GPTQ against its own formulas in float64 without a Cholesky factor, and what it promises beside round-to-nearest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.bits.gptq import BLOCK, inverse_factor, quantize_gptq
from learnscope.tensor.bits.quantize import Granularity, QuantiseError, Scheme, dequantize, quantize
from learnscope.tensor.bits.statistics import InputStatistics

GRANULARITIES: tuple[Granularity, ...] = ("tensor", "channel", "group")
Array = NDArray[np.float64]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def correlated(tokens: int, inputs: int, seed: int = 1) -> Tensor:
    """Inputs that tell of each other, some large, as those of a trained layer."""
    mixed: Tensor = drawn(tokens, inputs, seed=seed) @ drawn(inputs, inputs, seed=seed + 1) / inputs**0.5
    return mixed * torch.logspace(-1, 1, inputs)[torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))]


def grid(values: Array, bits: int, symmetric: bool) -> tuple[Array, Array]:
    """Scale and zero point of every row of `values`, by the definitions."""
    low, high = np.minimum(values.min(1), 0), np.maximum(values.max(1), 0)
    if symmetric:
        return np.maximum(-low, high) / (2 ** (bits - 1) - 1), np.zeros(len(values))
    scale = (high - low) / (2**bits - 1)
    return scale, np.round(-low / scale)


def by_definition(weight: Tensor, x: Tensor, bits: int, scheme: Scheme, damping: float, act_order: bool) -> Array:
    """Optimal brain surgery as the paper's equation (2) says it, one column at a time, in float64.

    The inverse Hessian of the columns that are left is inverted anew each time: no factor, no blocks.
    """
    w, gram = weight.double().numpy().copy(), (x.double().T @ x.double()).numpy()
    inputs = w.shape[1]
    h = gram + damping * np.diag(gram).mean() * np.eye(inputs)
    order = list(np.argsort(-np.diag(gram), kind="stable")) if act_order else list(range(inputs))
    length, symmetric = scheme.group_length(inputs), scheme.is_symmetric(bits)
    moves = not act_order and scheme.granularity == "group"
    if scheme.granularity == "tensor":
        scale, zero = grid(w.reshape(1, -1), bits, symmetric)
        grids = {0: (np.repeat(scale, len(w)), np.repeat(zero, len(w)))}
    else:
        grids = {g: grid(w[:, g : g + length], bits, symmetric) for g in range(0, inputs, length)}
    made = np.zeros_like(w)
    for done, column in enumerate(order):
        group = 0 if scheme.granularity == "tensor" else column // length * length
        if moves and column == group:
            grids[group] = grid(w[:, group : group + length], bits, symmetric)
        scale, zero = grids[group]
        most = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
        least = -most if symmetric else 0
        made[:, column] = (np.clip(np.round(w[:, column] / scale) + zero, least, most) - zero) * scale
        left = order[done:]
        inverse = np.linalg.inv(h[np.ix_(left, left)])
        w[:, left] -= np.outer((w[:, column] - made[:, column]) / inverse[0, 0], inverse[0])
    return made


def error(weight: Tensor, made: Tensor | Array, x: Tensor) -> Array:
    """Σ over tokens of the squared change of every output."""
    change = torch.as_tensor(made).double() - weight.double()
    found: Array = (change @ x.double().T).square().sum(1).numpy()
    return found


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_the_paper_s_update_in_float64(granularity: Granularity, symmetric: bool, act_order: bool) -> None:
    """The same numbers, or round-to-nearest's where these change a row's outputs less; groups that do not divide."""
    scheme = Scheme(symmetric, granularity, group_size=8, scale_dtype=torch.float64)
    weight, x = drawn(6, 29).double(), correlated(60, 29).double()
    updated_rows = 0
    for bits in (2, 3, 4, 8):
        got = dequantize(quantize_gptq(weight, bits, scheme, InputStatistics.of(x), act_order=act_order))
        updated = by_definition(weight, x, bits, scheme, 0.01, act_order)
        nearest = dequantize(quantize(weight, bits, scheme)).numpy()
        better = error(weight, updated, x) < error(weight, nearest, x)
        updated_rows += int(better.sum())
        np.testing.assert_allclose(got.numpy(), np.where(better[:, None], updated, nearest), rtol=1e-7, atol=1e-9)
    assert updated_rows >= 14  # of 24: it is the update that is compared


def test_lazy_blocks_change_nothing() -> None:
    """More columns than a block, groups that end inside one: as the definition, column by column."""
    for length in (48, 200, 300):
        scheme = Scheme(True, "group", group_size=length, scale_dtype=torch.float64)
        weight, x = drawn(3, BLOCK + 90).double(), correlated(400, BLOCK + 90).double()
        got = dequantize(quantize_gptq(weight, 4, scheme, InputStatistics.of(x), act_order=False))
        updated = by_definition(weight, x, 4, scheme, 0.01, False)
        assert (error(weight, updated, x) < error(weight, dequantize(quantize(weight, 4, scheme)), x)).all()
        np.testing.assert_allclose(got.numpy(), updated, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("act_order", [False, True])
def test_with_independent_inputs_it_is_round_to_nearest_bit_for_bit(act_order: bool) -> None:
    for weight in (drawn(5, 150), drawn(5, 150).half(), drawn(1, 7), torch.full((2, 9), 0.3), torch.zeros(2, 9)):
        statistics = InputStatistics.of(torch.eye(weight.shape[1]))
        for granularity in GRANULARITIES:
            for bits in range(2, 9):
                scheme = Scheme(granularity=granularity, group_size=16)
                ours = quantize_gptq(weight, bits, scheme, statistics, act_order=act_order)
                theirs = quantize(weight, bits, scheme)
                assert torch.equal(ours.codes, theirs.codes)
                assert ours.codes.dtype == theirs.codes.dtype
                assert ours.scale is not None
                assert theirs.scale is not None
                assert torch.equal(ours.scale, theirs.scale)
                assert (ours.zero is None) == (theirs.zero is None)
                assert ours.zero is None or theirs.zero is None or torch.equal(ours.zero, theirs.zero)


def few_tokens() -> Tensor:
    return correlated(3, 40)


def dead_channels() -> Tensor:
    x = correlated(80, 40)
    x[:, ::3] = 0
    return x


def nothing_but_zeros() -> Tensor:
    return torch.zeros(5, 40)


def twins() -> Tensor:
    return correlated(80, 20).repeat_interleave(2, dim=1)


def an_outlier() -> Tensor:
    x = correlated(80, 40)
    x[:, 7] *= 1e4
    return x


def one_token_far_larger() -> Tensor:
    x = correlated(80, 40) * 1e-12
    x[0] = 1e12
    return x


@pytest.mark.parametrize(
    "inputs", [few_tokens, dead_channels, nothing_but_zeros, twins, an_outlier, one_token_far_larger]
)
def test_outputs_change_no_more_than_by_rounding_to_nearest(inputs: Callable[[], Tensor]) -> None:
    """Row by row, on awkward inputs and weights. 1e-4 of room: the gram of float32 inputs is summed in float32."""
    x = inputs()
    weight = drawn(8, 40)
    weight[1], weight[2], weight[3] = 0, 0.4, weight[3] * 1e-20
    weight[4] = -weight[4].abs()
    statistics = InputStatistics.of(x)
    for dtype in (torch.float32, torch.bfloat16):
        for granularity in GRANULARITIES:
            for bits in (2, 3, 4, 8):
                scheme = Scheme(granularity=granularity, group_size=16)
                held = weight.to(dtype)
                made = dequantize(quantize_gptq(held, bits, scheme, statistics))
                assert made.dtype == dtype
                assert made.isfinite().all()
                ours, theirs = error(held, made, x), error(held, dequantize(quantize(held, bits, scheme)), x)
                assert (ours <= theirs * (1 + 1e-4)).all()


def test_a_dead_input_keeps_the_nearest_number() -> None:
    weight, x = drawn(6, 40), dead_channels()
    made, nearest = (dequantize(each) for each in (
        quantize_gptq(weight, 4, Scheme(), InputStatistics.of(x)), quantize(weight, 4, Scheme())))  # fmt: skip
    assert torch.equal(made[:, ::3], nearest[:, ::3])
    assert not torch.equal(made, nearest)


def test_much_of_the_error_goes_where_inputs_are_correlated() -> None:
    weight, x = drawn(32, 64), correlated(500, 64)
    for bits in (3, 4):
        ours = error(weight, dequantize(quantize_gptq(weight, bits, Scheme(), InputStatistics.of(x))), x).sum()
        assert ours < 0.65 * error(weight, dequantize(quantize(weight, bits, Scheme())), x).sum()


def test_the_factor_of_the_inverse() -> None:
    x = correlated(90, 30).double()
    gram = x.T @ x
    upper = inverse_factor(gram, 0.02)
    damped = gram + 0.02 * gram.diagonal().mean() * torch.eye(30, dtype=torch.float64)
    torch.testing.assert_close(upper.T @ upper @ damped, torch.eye(30, dtype=torch.float64), rtol=0, atol=1e-9)
    assert torch.equal(upper, upper.triu())


def test_broken_weights_and_statistics_are_refused() -> None:
    statistics = InputStatistics.of(correlated(20, 4))
    with pytest.raises(QuantiseError, match="1 of its 4 entries are NaN or Inf"):
        quantize_gptq(torch.tensor([[1.0, float("nan"), 0.0, 2.0]]), 4, Scheme(), statistics)
    with pytest.raises(QuantiseError, match="inputs on the calibration data have NaN or Inf"):
        InputStatistics.of(torch.tensor([[1.0, float("inf")]]))
    with pytest.raises(QuantiseError, match="more than float32 can hold"):
        quantize_gptq(drawn(2, 2), 4, Scheme(), InputStatistics.of(torch.full((2, 2), 1e30)))
