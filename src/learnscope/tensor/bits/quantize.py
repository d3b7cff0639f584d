"""Weights as integers of a few bits: the quantiser that every measurement and every packed file shares.

Symmetric: s = max|w|/(2^(b-1) - 1), q = clamp(round(w/s), ±(2^(b-1) - 1)), w' = q·s.
Asymmetric: the range is extended to contain 0, s = (max - min)/(2^b - 1), z = round(-min/s),
q = clamp(round(w/s) + z, 0, 2^b - 1), w' = (q - z)·s.

Ties round to even. w/s is a division: kernels that multiply by 1/s (torch's fake quantisation, torchao) may choose the
neighbouring number where w/s is within two ulp of a tie, and nowhere else.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

Granularity = Literal["tensor", "channel", "group"]
Half = Literal["float16", "bfloat16"]
WHOLE_BITS = range(2, 9)
"""Bits with which weights become integers with a scale."""
HALF_BITS = 16
"""Bits of a float16 or bfloat16; with more bits a weight stays as it is."""


class QuantiseError(ValueError):
    """A weight cannot be quantised; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How weights become integers.

    >>> Scheme(granularity="group", group_size=32).scale_shape(2, 96)
    (2, 3)
    """

    symmetric: bool | None = None
    """Around 0 without a zero point, or over the range with one; None: asymmetric at 3 bits and fewer, where a
    symmetric range would leave one of four (or eight) numbers unused."""
    granularity: Granularity = "channel"
    """A scale for the tensor, for each output channel, or for each `group_size` input features of a channel."""
    group_size: int = 64
    scale_dtype: torch.dtype = torch.float32
    """Of the stored scales. Weights are quantised with the scale as it is stored."""
    input_scales: bool = False
    """Whether a weight is stored with a factor for every input feature too, as AWQ needs it."""
    half: Half = "float16"
    """What 16 bits are, for a weight that is stored in more."""

    def __post_init__(self) -> None:
        if self.granularity not in get_args(Granularity):
            raise QuantiseError(f"granularity={self.granularity!r}: 'tensor', 'channel' or 'group' is needed")
        if isinstance(self.group_size, bool) or not isinstance(self.group_size, int) or self.group_size < 1:
            raise QuantiseError(f"group_size={self.group_size!r}: a whole number of input features from 1 is needed")
        if self.half not in get_args(Half):
            raise QuantiseError(f"half={self.half!r}: 'float16' or 'bfloat16' is needed")
        if self.symmetric not in (None, True, False):
            raise QuantiseError(f"symmetric={self.symmetric!r}: True, False or None (by the bits) is needed")
        if not (isinstance(self.scale_dtype, torch.dtype) and self.scale_dtype.is_floating_point):
            raise QuantiseError(
                f"scale_dtype={self.scale_dtype!r}: a floating-point dtype such as torch.float16 is needed"
            )

    def is_symmetric(self, bits: int) -> bool:
        return bits > 3 if self.symmetric is None else self.symmetric

    def group_length(self, inputs: int) -> int:
        """Input features that share a scale, in a channel with `inputs` of them."""
        return min(self.group_size, inputs) if self.granularity == "group" else inputs

    def scale_shape(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Shape of the scales of an [outputs, inputs] weight; no scales for a weight without entries."""
        if not outputs * inputs:
            return (0, 0)
        if self.granularity == "tensor":
            return (1, 1)
        return (outputs, -(-inputs // self.group_length(inputs)))


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight [out, in] as integers."""

    codes: Tensor
    """[out, in]; int8 around 0 if symmetric, uint8 otherwise; at 16 bits the weight itself in half precision."""
    scale: Tensor | None
    """[out, groups], [out, 1] or [1, 1], in the scheme's dtype; None at 16 bits."""
    zero: Tensor | None
    """The code that stands for 0, uint8, shaped like `scale`; None if symmetric."""
    bits: int
    scheme: Scheme
    dtype: torch.dtype
    """Of the weight."""
    inputs: Tensor | None = None
    """[in], in the scheme's dtype: every column is multiplied by its factor; None if the scheme has no input scales."""


def checked_bits(bits: Any) -> int:
    """`bits` as a valid number of bits: 2 to 8, 16, or more for "as stored"."""
    try:
        number = operator.index(bits)
    except TypeError:
        raise QuantiseError(f"bits={bits!r}: a whole number is needed") from None
    if isinstance(bits, bool) or (number not in WHOLE_BITS and number < HALF_BITS):
        raise QuantiseError(f"bits={bits!r}: 2 to 8, 16 (half precision) or 32 (as stored) are possible")
    return number


@torch.no_grad()
def quantize(weight: Tensor, bits: int, scheme: Scheme | None = None) -> Quantised:
    """`weight` [out, in] in 2 to 8 bits, or half precision for 16; refuses NaN, Inf, and scales beyond their dtype."""
    scheme = scheme or Scheme()
    if checked_bits(bits) > HALF_BITS:
        raise QuantiseError(f"bits={bits}: with more than 16 a weight stays as it is, there is nothing to quantise")
    matrix = checked_matrix(weight)
    if bits == HALF_BITS:
        return Quantised(matrix.to(_half_dtype(matrix, scheme)), None, None, bits, scheme, weight.dtype)
    return as_codes(*_levels(matrix, bits, scheme), matrix, bits, scheme)


def as_codes(
    levels: Tensor, scale: Tensor, zero: Tensor | None, matrix: Tensor, bits: int, scheme: Scheme
) -> Quantised:
    """What is stored of `matrix`: whole numbers [rows, groups, entries], scales and zero points [rows, groups, 1]."""
    codes = ungrouped(levels, matrix).to(torch.int8 if zero is None else torch.uint8)
    stored_zero = None if zero is None else zero.squeeze(-1).to(torch.uint8)
    ones = torch.ones(matrix.shape[1], dtype=scheme.scale_dtype, device=matrix.device) if scheme.input_scales else None
    return Quantised(
        codes, scale.squeeze(-1).to(scheme.scale_dtype), stored_zero, bits, scheme, matrix.dtype, inputs=ones
    )


@torch.no_grad()
def dequantize(quantised: Quantised) -> Tensor:
    """The weight [out, in] that the codes stand for, in the dtype that it had."""
    codes, scale, zero = quantised.codes, quantised.scale, quantised.zero
    if scale is None or not codes.numel():
        return codes.to(quantised.dtype)
    compute = compute_dtype(quantised.dtype)
    levels = grouped(codes.to(compute), quantised.scheme)
    wide_zero = None if zero is None else zero.to(compute).unsqueeze(-1)
    matrix = ungrouped(restored(levels, scale.to(compute).unsqueeze(-1), wide_zero), codes)
    if quantised.inputs is not None:
        matrix = matrix * quantised.inputs.to(compute)
    return matrix.to(quantised.dtype)


@torch.no_grad()
def fake_quantize(weight: Tensor, bits: int | None, scheme: Scheme | None = None) -> Tensor:
    """The same as `dequantize(quantize(weight, bits, scheme))`, bit for bit, but faster; a new tensor.

    With more than 16 bits, or None, an unchanged copy of the weight.

    >>> fake_quantize(torch.tensor([[0.0, 0.4, -1.0]]), 2, Scheme(symmetric=True))
    tensor([[ 0.,  0., -1.]])
    """
    if bits is None or checked_bits(bits) > HALF_BITS:
        return weight.detach().clone()
    matrix = checked_matrix(weight)
    if not matrix.numel():
        return matrix.clone()
    if bits == HALF_BITS:
        return matrix.to(_half_dtype(matrix, scheme or Scheme())).to(weight.dtype).clone()
    return ungrouped(restored(*_levels(matrix, bits, scheme or Scheme())), matrix).to(weight.dtype)


def _half_dtype(matrix: Tensor, scheme: Scheme) -> torch.dtype:
    """The 16-bit dtype for this weight: its own, or the scheme's; bfloat16 for entries beyond float16's range."""
    if matrix.dtype in (torch.float16, torch.bfloat16):
        return matrix.dtype
    if scheme.half == "bfloat16":
        return torch.bfloat16
    fits = not matrix.numel() or bool(matrix.abs().amax().to(torch.float16).isfinite())
    return torch.float16 if fits else torch.bfloat16


def checked_matrix(weight: Tensor) -> Tensor:
    if weight.ndim != 2:
        raise QuantiseError(f"a weight of shape {tuple(weight.shape)}: a matrix [out, in] is needed")
    if not weight.is_floating_point():
        raise QuantiseError(f"a weight of {weight.dtype} is not floating-point: it may be quantised already")
    if weight.is_meta:
        raise QuantiseError("it is on the meta device and holds no values: load the model first")
    matrix = weight.detach()
    # a sum is finite only if all entries are, and takes a tenth of the time
    if not bool(matrix.sum().isfinite()) and not bool(torch.isfinite(matrix).all()):
        count = int((~torch.isfinite(matrix)).sum())
        raise QuantiseError(
            f"{count} of its {matrix.numel()} entries are NaN or Inf, which no scale can cover: "
            "find where the training broke, or leave it as stored (bits=32)"
        )
    return matrix


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def grouped(matrix: Tensor, scheme: Scheme) -> Tensor:
    """[rows, groups, entries that share a scale]; a shorter last group is padded with 0, which changes no range."""
    if scheme.granularity == "tensor":
        return matrix.reshape(1, 1, -1)
    outputs, inputs = matrix.shape
    length = scheme.group_length(inputs)
    groups = -(-inputs // length)
    if groups * length > inputs:
        matrix = functional.pad(matrix, (0, groups * length - inputs))
    parts = matrix.reshape(outputs, groups, length)
    return parts.contiguous() if groups > 1 else parts  # of a transposed weight, reading them takes longer than copying


def ungrouped(grouped: Tensor, like: Tensor) -> Tensor:
    """The inverse of `grouped`, without the padding."""
    if grouped.numel() == like.numel():
        return grouped.reshape(like.shape)
    return grouped.reshape(like.shape[0], -1)[:, : like.shape[1]].contiguous()


def _levels(matrix: Tensor, bits: int, scheme: Scheme) -> tuple[Tensor, Tensor, Tensor | None]:
    """Integers as floats [rows, groups, entries], the scales [rows, groups, 1] as stored, and the zero points."""
    compute = compute_dtype(matrix.dtype)
    if not matrix.numel():
        none = torch.zeros(0, 0, 1, dtype=compute, device=matrix.device)
        return matrix.to(compute), none, None if scheme.is_symmetric(bits) else none
    groups = grouped(matrix.to(compute), scheme)
    scale, zero = scales_of(groups, bits, scheme)
    return rounded(groups, scale, zero, bits), scale, zero


def rounded(values: Tensor, scale: Tensor, zero: Tensor | None, bits: int) -> Tensor:
    """`values` as whole numbers on the grid of these scales and zero points."""
    if zero is None:
        return rounded_around_0(values, scale, 2 ** (bits - 1) - 1)
    return (values / scale).round_().add_(zero).clamp_(0, 2**bits - 1)


def scales_of(
    groups: Tensor, bits: int, scheme: Scheme, share: float = 1.0, ends: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor | None]:
    """The scales [rows, groups, 1] as stored and the zero points, for this share of the range of every group.

    Zero points are None if the scheme is symmetric. `ends` are the least and largest entry of each group, where these
    are known.
    """
    low, high = ends_of(groups) if ends is None else ends
    low, high = low * share, high * share
    if scheme.is_symmetric(bits):
        most = 2 ** (bits - 1) - 1
        return _as_stored(torch.maximum(-low, high) / most, groups, scheme), None
    most = 2**bits - 1
    low, high = low.clamp(max=0), high.clamp(min=0)
    spread = (high - low) / most
    if not bool(spread.isfinite().all()):  # high - low overflows, the scale does not
        spread = torch.where(spread.isfinite(), spread, (high / 2 - low / 2) / (most / 2))
    scale = _as_stored(spread, groups, scheme)
    return scale, (-low / scale).round_().clamp_(0, most).add_(0.0)


def ends_of(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The least and largest entry of each group; `aminmax` takes ten times as long as both by themselves."""
    return groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)


@torch.no_grad()
def channel_scales(weight: Tensor, bits: int) -> Tensor:
    """The scales [out, 1] with which `quantize` rounds the output channels of a weight [out, in] to these bits."""
    matrix = checked_matrix(weight)
    return scales_of(grouped(matrix.to(compute_dtype(matrix.dtype)), Scheme()), bits, Scheme())[0].squeeze(-1)


def rounded_around_0(values: Tensor, scale: Tensor, most: int) -> Tensor:
    # + 0.0 turns -0.0 into 0.0, as an integer has no -0
    return (values / scale).round_().clamp_(-most, most).add_(0.0)


def _as_stored(scale: Tensor, groups: Tensor, scheme: Scheme) -> Tensor:
    """The scale as stored: 1 for a group of zeros, the smallest positive number where it would round to 0."""
    stored = scale.to(scheme.scale_dtype).to(scale.dtype)
    if not bool(stored.isfinite().all()):
        raise QuantiseError(
            f"a scale of {float(scale.amax()):.3g} is more than {scheme.scale_dtype} can hold: give a wider scale_dtype"
        )
    if bool((stored == 0).any()):
        least = torch.finfo(scheme.scale_dtype).smallest_normal * torch.finfo(scheme.scale_dtype).eps
        empty = (groups == 0).all(-1, keepdim=True)
        stored = torch.where(stored == 0, torch.where(empty, 1.0, least).to(stored.dtype), stored)
    return stored


def restored(levels: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """The numbers that `levels` stand for; written over them."""
    return levels.mul_(scale) if zero is None else levels.sub_(zero).mul_(scale)
