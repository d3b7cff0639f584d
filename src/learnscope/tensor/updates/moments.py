"""The moments that an optimizer keeps of its gradients, and the step that follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic
from learnscope.tensor.rows import pieces
from learnscope.tensor.updates.update import adam_step

CHUNK = 1 << 15
"""Entries read at a time on a CPU: half a dozen float64 vectors of this length stay in the cache."""
ACCELERATOR_CHUNK = 1 << 22
"""Entries read at a time on an accelerator, where calls cost more than memory: 32 MiB per vector."""

FIRST, SECOND, NOISE, STEP, WEIGHT, INNER, GRADIENT, COMPARED, ENTRIES, LARGEST_STEP = range(10)
"""Columns of `moment_sums`: Σm̂², Σv̂, Σmax(v̂ − m̂², 0), Σstep², Σw², Σm̂·g, Σg², Σm̂² where there is a gradient,
the number of entries, and max|step|."""

COLUMNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One parameter, its gradient, and its optimizer state."""

    weight: Tensor
    first: Tensor
    """Adam's `exp_avg` or SGD's `momentum_buffer`."""
    second: Tensor | None = None
    """None for SGD, of which no step is computed."""
    largest: Tensor | None = None
    """AMSGrad's running maximum of `second`, which replaces it in the step."""
    gradient: Tensor | None = None
    ascending: bool = False
    """With `maximize`, the moments are those of −g."""
    corrections: tuple[float | Tensor, float | Tensor] = (1.0, 1.0)
    """Bias corrections, by which `first` and `second` are divided: 1 − β₁ᵗ, 1 − β₂ᵗ."""
    rate: float | Tensor = 0.0
    eps: float = 0.0


def moment_sums(state: Remembered) -> Tensor:
    """The columns named above, `[COLUMNS]` float64 on the weight's device, without a host sync.

    >>> grown = Remembered(weight=torch.tensor([2.0]), first=torch.tensor([0.5]), gradient=torch.tensor([3.0]))
    >>> sums = moment_sums(grown).tolist()
    >>> sums[FIRST], sums[INNER], sums[WEIGHT]
    (0.25, 1.5, 4.0)
    """
    with plain_arithmetic(state.weight.device):
        total = torch.zeros(COLUMNS, dtype=torch.float64, device=state.weight.device)
        for part in _parts(state):
            sums = _sums(part, resolution(state))
            largest = torch.maximum(total[LARGEST_STEP], sums[LARGEST_STEP])
            total += sums
            total[LARGEST_STEP] = largest
        return total


def _parts(state: Remembered) -> Iterator[Remembered]:
    """The state of a few entries at a time, as float64 vectors."""
    names = ("weight", "first", "second", "largest", "gradient")
    tensors = {name: _dense(tensor) for name in names if (tensor := getattr(state, name)) is not None}
    device = state.weight.device
    for group in pieces(tuple(tensors.values()), CHUNK if device.type == "cpu" else ACCELERATOR_CHUNK):
        vectors: list[Any] = [tensor.reshape(-1).to(device, torch.float64) for tensor in group]
        yield replace(state, **dict(zip(tensors, vectors, strict=True)))


def _dense(tensor: Tensor) -> Tensor:
    tensor = plain(tensor)
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _sums(state: Remembered, resolution: float) -> Tensor:
    weight, gradient, largest = state.weight, state.gradient, state.largest
    mean = state.first / state.corrections[0]
    out = torch.zeros(COLUMNS, dtype=torch.float64, device=weight.device)
    out[ENTRIES] = weight.numel()
    out[FIRST] = torch.dot(mean, mean)
    out[WEIGHT] = torch.dot(weight, weight)
    if state.second is not None and weight.numel():
        square = state.second / state.corrections[1]
        step = adam_step(state.rate, state.eps, mean, square if largest is None else largest / state.corrections[1])
        out[SECOND] = square.sum()
        out[NOISE] = noise_of(mean, square, resolution).sum()
        out[STEP] = torch.dot(step, step)
        out[LARGEST_STEP] = step.abs_().amax()
    if gradient is not None:
        out[INNER] = torch.dot(mean, gradient) * (-1 if state.ascending else 1)
        out[GRADIENT] = torch.dot(gradient, gradient)
        out[COMPARED] = out[FIRST]
    return out


def resolution(state: Remembered) -> float:
    """Share of v̂ below which v̂ − m̂² is the rounding error of two equal numbers in the state's dtypes."""
    tensors = [tensor for tensor in (state.first, state.second) if tensor is not None]
    return 4 * max(torch.finfo(tensor.dtype).eps for tensor in tensors)


def noise_of(mean: Tensor, square: Tensor, resolution: float) -> Tensor:
    """max(v̂ − m̂², 0), and 0 where it is too small compared with v̂ to be told from rounding error."""
    noise = square - mean.square()
    return torch.where(noise < resolution * square, 0.0, noise)


def fixed_entries(entries: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Indices of all entries if there are at most `size`, else of `size` entries drawn with replacement.

    >>> fixed_entries(3, 8, 0, torch.device("cpu")).tolist()
    [0, 1, 2]
    """
    if entries <= size:
        return torch.arange(entries, device=device)
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randint(entries, (size,), generator=generator, device="cpu").to(device)


def signal_to_noise(state: Remembered, size: int, seed: int) -> Tensor:
    """|m̂|/√max(v̂ − m̂², 0) of at most `size` entries, the same ones at every call, float64.

    Infinite where only the denominator is 0, as after a first step; −1 where m̂ = v̂ = 0: there was never a gradient.
    """
    assert state.second is not None, "SGD keeps no second moment"
    with plain_arithmetic(state.weight.device):
        indices = fixed_entries(state.first.numel(), size, seed, state.first.device)
        mean, square = (
            torch.take(plain(tensor), indices).to(state.weight.device, torch.float64) / by
            for tensor, by in zip((state.first, state.second), state.corrections, strict=True)
        )
        ratio = mean.abs() / noise_of(mean, square, resolution(state)).sqrt()
        return torch.where((mean == 0) & (square == 0), -1.0, ratio)


def weighted_median(values: Tensor, weights: Tensor) -> float | None:
    """The value with half of the weight on either side, or the mean of two such values.

    NaN if a value is NaN; None without values.

    >>> weighted_median(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 5.0]))
    2.0
    >>> weighted_median(torch.tensor([3.0, 1.0]), torch.ones(2))
    2.0
    """
    if not values.numel():
        return None
    values, order = values.double().sort()
    if values[-1].isnan():  # they sort last
        return float("nan")
    reached = weights.double()[order].cumsum(0)
    half = reached[-1:] / 2
    last = values.numel() - 1
    low, high = (int(torch.searchsorted(reached, half, right=right)) for right in (False, True))
    return float((values[low] + values[min(high, last)]) / 2)
