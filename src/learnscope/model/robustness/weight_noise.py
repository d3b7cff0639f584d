"""Weights with added noise: a share of each channel's size, or as large as the error of rounding to a few bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from learnscope.model.bits.quantise import readable
from learnscope.model.bits.quantised_units import Unit
from learnscope.model.weights.swap import swapped
from learnscope.tensor.bits.quantize import WHOLE_BITS, channel_scales
from learnscope.tensor.context import arithmetic_dtype

NoiseKind = Literal["weight_noise", "quantisation_noise"]
KEPT = 1 << 30
"""Bytes of random numbers that are kept for all levels of noise, at most."""


class Draws:
    """The random numbers of one seed for these weights, one tensor after the other, the same each time.

    They are drawn once and kept if they take at most `KEPT` bytes; otherwise they are drawn each time.
    """

    def __init__(self, kind: NoiseKind, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self._kept: list[Tensor] = []
        self._room = KEPT

    def over(self, matrices: Iterable[Tensor]) -> Iterator[Tensor]:
        """For each of the matrices, numbers of its shape."""
        if self._kept:
            yield from self._kept
            return
        generator = torch.Generator().manual_seed(self.seed)
        kept: list[Tensor] = []
        for matrix in matrices:
            drawn = numbers_for(matrix, self.kind, generator)
            self._room -= drawn.nbytes
            kept = [*kept, drawn] if self._room >= 0 else []
            yield drawn
        self._kept = kept


def numbers_for(matrix: Tensor, kind: NoiseKind, generator: torch.Generator) -> Tensor:
    """Normal or even ones, in float32 or better."""
    draw = torch.randn if kind == "weight_noise" else torch.rand
    return draw(matrix.shape, generator=generator, dtype=arithmetic_dtype(matrix), device=generator.device)


def channel_noise(matrix: Tensor, sigma: float, drawn: Tensor) -> Tensor:
    """N(0, (σ·rms of its row)²) for every entry of a weight [out, in], from normal numbers; 0 for a row of zeros."""
    wide = matrix.to(arithmetic_dtype(matrix))
    rms: Tensor = torch.linalg.vector_norm(wide, dim=1, keepdim=True) / max(1, wide.shape[1]) ** 0.5
    return drawn.to(wide.device) * (sigma * rms)


def rounding_noise(matrix: Tensor, bits: int, drawn: Tensor) -> Tensor:
    """U(−s/2, s/2) for every entry of a weight [out, in], with the scale s of its channel at these bits, from numbers
    that are even in [0, 1).

    The usual model of rounding errors, but independent of the weights, which rounding is not. A channel of zeros is
    exact at any bits and gets no noise.
    """
    if bits not in WHOLE_BITS:
        raise ValueError(f"bits={bits}: rounding to half precision has no scale; quantisation noise is for 2 to 8 bits")
    wide = matrix.to(arithmetic_dtype(matrix))
    scale = torch.where((matrix == 0).all(1, keepdim=True), 0, channel_scales(matrix, bits).to(wide))
    return (drawn.to(wide.device) - 0.5) * scale


@contextmanager
def noised(model: nn.Module, units: Sequence[Unit], kind: NoiseKind, level: float, seed: int | Draws) -> Iterator[None]:
    """`model` with noise of this level (σ, or bits) on the units, under the guard; restored bit for bit afterwards."""
    draws = seed if isinstance(seed, Draws) else Draws(kind, seed)
    parameters = dict(model.named_parameters())
    tensors = [tensor for unit in units for tensor in unit.tensors]
    matrices = [readable(tensor, parameters[tensor.name]) for tensor in tensors]
    new: dict[str, Tensor] = {}
    for tensor, matrix, drawn in zip(tensors, matrices, draws.over(matrices), strict=True):
        if kind == "weight_noise":
            noise = channel_noise(matrix, level, drawn)
        else:
            noise = rounding_noise(matrix, int(level), drawn)
        new[tensor.name] = tensor.as_stored((matrix.to(noise.dtype) + noise).to(matrix.dtype))
    with swapped(model, new):
        yield
