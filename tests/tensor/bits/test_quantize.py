"""The quantiser against NumPy in float64, torch's fake quantisation and torchao, on awkward weights too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.bits.quantize import (
    Granularity,
    QuantiseError,
    Scheme,
    dequantize,
    fake_quantize,
    quantize,
)
from learnscope.tensor.bits.tokens import fake_quantize_tokens

GRANULARITIES: tuple[Granularity, ...] = ("tensor", "channel", "group")


def weights() -> Tensor:
    """Channels that are ordinary, zero, constant, of one sign, with one entry, tiny, huge, or full of ties."""
    drawn = torch.randn(12, 37, generator=torch.Generator().manual_seed(0))
    drawn[1] = 0
    drawn[2] = 0.7
    drawn[3] = -drawn[3].abs()
    drawn[4] = drawn[4].abs() + 3
    drawn[5] = 0
    drawn[5, 20] = -2.5
    drawn[6] *= 1e-30
    drawn[7] *= 5e37
    drawn[8] = torch.linspace(-1, 1, 37)
    drawn[9] = (drawn[9] * 8).round() / 8  # short mantissas
    drawn[10, :] = torch.tensor([1.0, 0.5, -0.5, 0.25] * 9 + [-1.0])
    return drawn


def groups_of(weight: NDArray[np.float64], granularity: Granularity, size: int) -> list[tuple[slice, slice]]:
    rows, columns = weight.shape
    if granularity == "tensor":
        return [(slice(None), slice(None))]
    step = columns if granularity == "channel" else size
    return [(slice(r, r + 1), slice(c, c + step)) for r in range(rows) for c in range(0, columns, step)]


def by_formula(weight: Tensor, bits: int, scheme: Scheme) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The definitions in float64, group by group: the restored weight, and the step at every entry."""
    w = weight.double().numpy()
    restored, steps = np.zeros_like(w), np.zeros_like(w)
    for place in groups_of(w, scheme.granularity, scheme.group_size):
        part = w[place]
        if not part.any():
            continue
        if scheme.is_symmetric(bits):
            most = 2 ** (bits - 1) - 1
            s = np.abs(part).max() / most
            restored[place] = np.clip(np.round(part / s), -most, most) * s
        else:
            most = 2**bits - 1
            low, high = min(part.min(), 0.0), max(part.max(), 0.0)
            s = (high - low) / most
            z = np.round(-low / s)
            restored[place] = (np.clip(np.round(part / s) + z, 0, most) - z) * s
        steps[place] = s
    return restored, steps


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_formulas_in_float64(bits: int, symmetric: bool) -> None:
    """float64 weights and scales: the same numbers to rounding, but for ties that an ulp of the scale decides."""
    for granularity in GRANULARITIES:
        scheme = Scheme(symmetric, granularity, group_size=8, scale_dtype=torch.float64)
        weight = weights().double()
        expected, steps = by_formula(weight, bits, scheme)
        got = fake_quantize(weight, bits, scheme).numpy()
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, expected, rtol=1e-14, atol=0)
        most = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
        values = {len(np.unique(got[place])) for place in groups_of(got, granularity, 8)}
        assert max(values) <= (2 * most + 1 if symmetric else most + 1)
        assert (np.abs(got - weight.numpy()) <= steps * (0.5 if symmetric else 1.0) * (1 + 1e-12)).all()


def near_a_tie(weight: Tensor, scale: Tensor) -> Tensor:
    """Where w/s lies within two units in the last place of float32 of a tie, in float64 of the same float32 numbers."""
    quotient = weight.double() / scale.double()
    ulp = 2.0 ** (quotient.abs().clamp(min=0.5).log2().floor() - 23)
    return ((quotient - quotient.floor()) - 0.5).abs() <= 2 * ulp


@pytest.mark.parametrize("symmetric", [True, False])
def test_torch_fake_quantises_to_the_same_bits(symmetric: bool) -> None:
    """Equal bit for bit, save where w/s is a tie within two ulp: torch multiplies by 1/s instead of dividing."""
    ties = compared = 0
    for bits in range(2, 9):
        most = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
        least = -most if symmetric else 0
        for granularity in ("tensor", "channel"):
            made = quantize(weights(), bits, Scheme(symmetric, granularity))
            assert made.scale is not None
            zero = torch.zeros_like(made.scale) if made.zero is None else made.zero
            if granularity == "tensor":
                whole = (float(made.scale), int(zero), least, most)
                theirs = torch.fake_quantize_per_tensor_affine(weights(), *whole)
            else:
                each = (made.scale[:, 0], zero[:, 0].to(torch.int32), 0, least, most)
                theirs = torch.fake_quantize_per_channel_affine(weights(), *each)
            ours = dequantize(made)
            assert ours.dtype == torch.float32
            other = ours.view(torch.int32) != theirs.view(torch.int32)
            assert near_a_tie(weights(), made.scale)[other].all()
            one_step = (ours - theirs).abs() <= made.scale * 1.001
            assert one_step.all()
            ties, compared = ties + int(other.sum()), compared + other.numel()
    assert compared == 7 * 2 * 12 * 37
    assert ties <= 3  # none where this was written; a kernel that fuses its operations may round otherwise


@pytest.mark.parametrize("symmetric", [True, False])
def test_torchao_chooses_the_same_scales_and_codes(symmetric: bool) -> None:
    from torchao.quantization.quant_primitives import (
        MappingType,
        choose_qparams_affine,
        dequantize_affine,
        quantize_affine,
    )

    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(9, 64, generator=generator)
    weight[2] = 0
    weight[3] = weight[3].abs()
    for bits in range(2, 9):
        most = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
        least = -most if symmetric else 0
        for granularity, block in (("tensor", (9, 64)), ("channel", (1, 64)), ("group", (1, 16))):
            scheme = Scheme(symmetric, granularity, group_size=16)  # type: ignore[arg-type]
            made = quantize(weight, bits, scheme)
            kind = MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC
            held = torch.int8 if symmetric else torch.uint8
            scale, zero = choose_qparams_affine(weight, kind, block, held, least, most, zero_point_dtype=torch.int32)
            codes = quantize_affine(weight, block, scale, zero, held, least, most)
            restored = dequantize_affine(codes, block, scale, zero, held, least, most)
            assert made.scale is not None
            live = weight.reshape(-1, *block).abs().amax((1, 2)) > 0 if granularity != "tensor" else torch.ones(1) > 0
            assert torch.equal(made.scale.reshape(-1)[live], scale.reshape(-1)[live])
            if made.zero is not None:
                assert torch.equal(made.zero.reshape(-1).int()[live], zero.reshape(-1)[live])
            other = made.codes != codes
            step = made.scale.repeat_interleave(block[1], dim=1) if granularity == "group" else made.scale
            assert near_a_tie(weight, step)[other].all()
            assert other.sum() <= 1
            assert torch.equal(dequantize(made)[~other], restored[~other])


def test_fake_is_quantise_and_back_bit_for_bit() -> None:
    """In every dtype, with the sign of zero, at every granularity with a shorter last group, also transposed."""
    checked = 0
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        plain = weights() if dtype != torch.float16 else weights().clamp(-6e4, 6e4)
        weight = plain.to(dtype)
        for bits in (2, 3, 4, 8, 16):
            for scheme in (
                Scheme(granularity=g, group_size=10, symmetric=s) for g in GRANULARITIES for s in (True, False)
            ):
                there = dequantize(quantize(weight, bits, scheme))
                once = fake_quantize(weight, bits, scheme)
                assert there.dtype == once.dtype == dtype
                assert torch.equal(there.view(torch.uint8), once.view(torch.uint8))
                assert torch.equal(fake_quantize(weight.T.contiguous().T, bits, scheme), once)
                checked += 1
    assert checked == 4 * 5 * 6


def test_groups_run_along_the_inputs_and_the_last_may_be_short() -> None:
    weight = torch.tensor([[1.2, 2.0, 4.8, 8.0, 100.0], [1.0, 1.0, 1.0, 1.0, 0.0]])
    made = quantize(weight, 4, Scheme(True, "group", group_size=2))
    assert made.scale is not None
    torch.testing.assert_close(made.scale * 7, torch.tensor([[2.0, 8.0, 100.0], [1.0, 1.0, 7.0]]), rtol=1e-6, atol=0)
    assert made.codes.tolist() == [[4, 7, 4, 7, 7], [7, 7, 7, 7, 0]]
    assert torch.equal(
        made.codes, quantize(weight, 4, Scheme(True, "group", group_size=2, scale_dtype=torch.float64)).codes
    )


def test_the_smallest_and_the_largest_numbers_keep_their_values() -> None:
    """A scale that would be rounded to 0 is the least number there is; a range that overflows has a finite share."""
    tiny = torch.tensor([[1e-45, 0.0, -3e-45, 1.4e-44]])
    assert torch.equal(fake_quantize(tiny, 8), tiny)
    for dtype in (torch.float16, torch.float32):
        small = torch.tensor([[2e-7, -4e-7, 0.0]], dtype=torch.float64)
        assert (fake_quantize(small, 8, Scheme(scale_dtype=dtype)) - small).abs().max() <= 3.1e-8
    huge = torch.tensor([[3.3e38, -3.3e38, 1e38, 0.0]])
    for symmetric in (True, False):
        got = fake_quantize(huge, 8, Scheme(symmetric))
        assert (got.double() - huge.double()).abs().max() <= 3.3e38 * 2 / 255
        assert got[0, 3] == 0
    with pytest.raises(QuantiseError, match=r"more than torch.float16 can hold: give a wider scale_dtype"):
        fake_quantize(huge, 8, Scheme(scale_dtype=torch.float16))


def test_zero_is_zero_and_a_quantised_weight_stays() -> None:
    for bits in range(2, 9):
        for symmetric in (True, False):
            scheme = Scheme(symmetric)
            once = fake_quantize(weights(), bits, scheme)
            assert (once[weights() == 0] == 0).all()
            assert (once[1].view(torch.int32) == 0).all()
            if symmetric:  # an asymmetric range may lose its end to the rounding of the zero point
                torch.testing.assert_close(fake_quantize(once, bits, scheme), once, rtol=2e-6, atol=0)


def test_sixteen_bits_are_half_precision_and_more_are_as_stored() -> None:
    weight = torch.tensor([[1 / 3, 2.0]])
    assert quantize(weight, 16).codes.dtype == torch.float16
    assert torch.equal(fake_quantize(weight, 16), weight.half().float())
    beyond = torch.tensor([[1 / 3, 7e4]])  # float16 ends at 65504
    assert quantize(beyond, 16).codes.dtype == torch.bfloat16
    assert torch.equal(fake_quantize(beyond, 16), beyond.bfloat16().float())
    assert quantize(weight.bfloat16(), 16).codes.dtype == torch.bfloat16
    for bits in (17, 32, None):
        kept = fake_quantize(weight, bits)
        assert torch.equal(kept, weight)
        assert kept.data_ptr() != weight.data_ptr()


def test_weights_without_entries() -> None:
    for shape in ((0, 4), (3, 0)):
        for bits in (2, 4, 16):
            made = quantize(torch.zeros(shape), bits)
            assert dequantize(made).shape == fake_quantize(torch.zeros(shape), bits).shape == shape
            assert made.scale is None or made.scale.numel() == 0


def test_what_cannot_be_quantised_is_refused() -> None:
    for bad in (float("nan"), float("inf")):
        for bits in (2, 8, 16):
            with pytest.raises(QuantiseError, match="1 of its 4 entries are NaN or Inf"):
                fake_quantize(torch.tensor([[1.0, bad], [0.0, 2.0]]), bits)
    for bits in (0, 1, 9, 15, -4, True, 4.0, "8"):
        with pytest.raises(QuantiseError, match="bits="):
            fake_quantize(torch.ones(2, 2), bits)  # type: ignore[arg-type]
    with pytest.raises(QuantiseError, match="matrix"):
        quantize(torch.ones(3), 8)
    with pytest.raises(QuantiseError, match="meta device"):
        quantize(torch.ones(2, 2, device="meta"), 8)
    with pytest.raises(QuantiseError, match="quantised already"):
        quantize(torch.ones(2, 2, dtype=torch.int8), 8)
    for wrong in ({"granularity": "row"}, {"group_size": 0}, {"symmetric": "no"}, {"scale_dtype": torch.int8}):
        with pytest.raises(QuantiseError, match=next(iter(wrong))):
            Scheme(**wrong)  # type: ignore[arg-type]


def test_tokens_are_rounded_by_their_own_range() -> None:
    values = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(2))
    values[0, 0] *= 1000
    values[0, 1] = 0
    for bits in (2, 4, 8):
        expected = fake_quantize(values.reshape(15, 16), bits, Scheme(symmetric=True)).reshape(3, 5, 16)
        assert torch.equal(fake_quantize_tokens(values, bits), expected)
    broken = values.clone()
    broken[1, 2, 3], broken[2, 2, 3] = float("nan"), float("inf")
    got = fake_quantize_tokens(broken, 8)
    assert got[1, 2].isnan().all()
    assert got[2, 2].isnan().all()
    assert got.isnan().sum() == 32
    followed = values.clone().requires_grad_()
    (fake_quantize_tokens(followed, 4) * values).sum().backward()
    assert followed.grad is not None
    assert torch.equal(followed.grad, values)
    assert torch.equal(fake_quantize_tokens(torch.arange(3), 4), torch.arange(3))
