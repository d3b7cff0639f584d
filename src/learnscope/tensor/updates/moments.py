"""The moments that an optimizer keeps of its gradients, and the update it computed, before rounding to the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype, plain, plain_arithmetic
from learnscope.tensor.rows import pieces
from learnscope.tensor.updates.fold import bits_differ

CHUNK = 1 << 15
"""Entries read at a time on a CPU: half a dozen float64 vectors of this length stay in the cache."""
ACCELERATOR_CHUNK = 1 << 22
"""Entries read at a time on an accelerator, where calls cost more than memory: 32 MiB per vector."""

FIRST, SECOND, NOISE, STEP, WEIGHT, INNER, GRADIENT, COMPARED, ENTRIES, LARGEST_STEP = range(10)
"""Columns of `moment_sums`: Σm̂², Σv̂, Σmax(v̂ − m̂², 0), Σstep², Σw², Σm̂·g, Σg², Σm̂² where there is a gradient,
the number of entries, and max|step|."""

COLUMNS = 10
KNOWN = ("SGD", "Adam", "AdamW")
Rounding = Literal["apart", "together"]


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
    tensors = {name: plain(tensor) for name in names if (tensor := getattr(state, name)) is not None}
    tensors = {name: t if t.layout is torch.strided else t.to_dense() for name, t in tensors.items()}
    device = state.weight.device
    for group in pieces(tuple(tensors.values()), CHUNK if device.type == "cpu" else ACCELERATOR_CHUNK):
        vectors: list[Any] = [tensor.reshape(-1).to(device, torch.float64) for tensor in group]
        yield replace(state, **dict(zip(tensors, vectors, strict=True)))


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


def planned_update(
    optimizer: str, options: Mapping[str, Any], state: Mapping[str, Tensor], weight: Tensor, gradient: Tensor
) -> Tensor:
    """The step of one of torch's optimizers in float32 (float64 for float64 weights), from its state after it.

    Adam: −η·m̂/(√v̂ + ε), m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ), with the running maximum of v for AMSGrad.
    AdamW adds −η·λ·w. SGD: −η·d with d the momentum buffer (Nesterov: g + μ·d), g including λ·w.
    `weight` is the weight before the step; all tensors are aligned samples of the same entries.
    """
    wide = arithmetic_dtype(weight)
    w, g = weight.to(wide), gradient.to(wide)
    rate = float(options["lr"])
    decay = float(options.get("weight_decay", 0.0))
    if optimizer in ("Adam", "AdamW"):
        first, second = bias_corrections(options, state["step"])
        spread = (state["max_exp_avg_sq"] if options.get("amsgrad") else state["exp_avg_sq"]).to(wide) / second
        step = adam_step(rate, float(options["eps"]), state["exp_avg"].to(wide) / first, spread)
        return step - rate * decay * w if decoupled(optimizer, options) else step
    if optimizer != "SGD":
        raise ValueError(f"the update of {optimizer} is not known; known are {', '.join(KNOWN)}")
    g = (-g if options.get("maximize") else g) + decay * w
    momentum = float(options.get("momentum", 0.0))
    if momentum == 0.0:
        return -rate * g
    buffer = state["momentum_buffer"].to(w.dtype)
    return -rate * (g + momentum * buffer if options.get("nesterov") else buffer)


def bias_corrections(options: Mapping[str, Any], step: float | Tensor) -> tuple[float | Tensor, float | Tensor]:
    """1 − β₁ᵗ and 1 − β₂ᵗ, on the accelerator if the step count is there.

    >>> [round(c, 12) for c in bias_corrections({"betas": (0.9, 0.999)}, 2)]
    [0.19, 0.001999]
    """
    steps = step.double() if isinstance(step, Tensor) and step.device.type != "cpu" else float(step)
    first, second = (1 - float(beta) ** steps for beta in options["betas"])
    return first, second


def adam_step(rate: float | Tensor, eps: float, mean: Tensor, spread: Tensor) -> Tensor:
    """−η·m̂/(√v̂ + ε) (Kingma and Ba, arXiv 1412.6980), without weight decay."""
    step: Tensor = -rate * mean / (spread.sqrt() + eps)
    return step


def decoupled(optimizer: str, options: Mapping[str, Any]) -> bool:
    """Whether weight decay shrinks the weight itself (AdamW) instead of being added to the gradient."""
    return optimizer == "AdamW" or bool(options.get("decoupled_weight_decay", False))


def decay_rounding(options: Mapping[str, Any]) -> Rounding:
    """Whether decay is rounded apart from the rest of the update, or together with it.

    torch's loops round after every operation: the weight after w·(1 − ηλ), the gradient after g + λ·w. Its fused
    kernels work in float32 and round the finished weight once.
    """
    return "together" if options.get("fused") else "apart"


def decay_vanishes(optimizer: str, options: Mapping[str, Any], weight: Tensor, gradient: Tensor) -> Tensor:
    """Entries that weight decay, rounded apart as torch's loops do it, leaves bit for bit unchanged.

    Decoupled: w·(1 − ηλ) rounded to the dtype of w is w. Coupled: g + λ·w rounded to the dtype of g is g.
    The arithmetic is torch's own, in the tensors' own dtype: float32 inside, rounded once.
    """
    decay = options["weight_decay"]
    if decoupled(optimizer, options):
        return ~bits_differ(weight * (1 - options["lr"] * decay), weight)
    used = -gradient if options.get("maximize") else gradient
    return ~bits_differ(used.add(weight, alpha=float(decay)), used)
