"""Weights with added noise: a share of each channel's size, or as large as the error of rounding to a few bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantise import readable
from learnscope.model.bits.quantised_units import Unit
from learnscope.model.weights.swap import swapped
from learnscope.tensor.bits.quantize import Scheme, quantize
from learnscope.tensor.context import arithmetic_dtype

NoiseKind = Literal["weight_noise", "quantisation_noise"]


def channel_noise(matrix: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """N(0, (σ·rms of its row)²) for every entry of a weight [out, in], in float32 or better; 0 for a row of zeros."""
    wide = matrix.to(arithmetic_dtype(matrix))
    rms: Tensor = torch.linalg.vector_norm(wide, dim=1, keepdim=True) / max(1, wide.shape[1]) ** 0.5
    drawn = torch.randn(wide.shape, generator=generator, dtype=wide.dtype, device=generator.device)
    return drawn.to(wide.device) * (sigma * rms)


def rounding_noise(matrix: Tensor, bits: int, generator: torch.Generator) -> Tensor:
    """U(−s/2, s/2) for every entry of a weight [out, in], with the scale s of its channel at these bits.

    The usual model of rounding errors, but independent of the weights, which rounding is not. A channel of zeros is
    exact at any bits and gets no noise.
    """
    wide = matrix.to(arithmetic_dtype(matrix))
    scale = quantize(matrix, bits, Scheme(granularity="channel")).scale
    if scale is None:
        raise ValueError(f"bits={bits}: rounding to half precision has no scale; quantisation noise is for 2 to 8 bits")
    scale = torch.where((matrix == 0).all(1, keepdim=True), 0, scale.to(wide))
    drawn = torch.rand(wide.shape, generator=generator, dtype=wide.dtype, device=generator.device)
    return (drawn.to(wide.device) - 0.5) * scale


@contextmanager
def noised(model: nn.Module, units: Sequence[Unit], kind: NoiseKind, level: float, seed: int) -> Iterator[None]:
    """`model` with noise of this level (σ, or bits) on the units, under the guard; restored bit for bit afterwards."""
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    new: dict[str, Tensor] = {}
    for tensor in (tensor for unit in units for tensor in unit.tensors):
        matrix = readable(tensor, parameters[tensor.name])
        if kind == "weight_noise":
            noise = channel_noise(matrix, level, generator)
        else:
            noise = rounding_noise(matrix, int(level), generator)
        new[tensor.name] = tensor.as_stored((matrix.to(noise.dtype) + noise).to(matrix.dtype))
    with swapped(model, new):
        yield
