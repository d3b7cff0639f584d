"""How much the outputs of a model differ from example to example, without a wait for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnscope import native
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.host import lent, plain_array

ROWS, ENTRIES = 128, 2**14
"""Examples, and entries of them, that are looked at: of more, those that lie equally far apart."""


def output_numbers(outputs: Tensor) -> Tensor | None:
    """[spread, cosine, rank, confidence, width] of the outputs of a batch, an example a row; None for one example.

    | | |
    |---|---|
    | spread | √(Σ(y − ȳ)²/n), ȳ the mean output of the examples |
    | cosine | mean cosine of the outputs of two examples; NaN where an output is 0 |
    | rank | (Σλ)²/Σλ², λ the eigenvalues of their covariance: how many directions they differ in; NaN if in none |
    | confidence | mean of the largest softmax(y), as if outputs were logits; NaN unless they are a list of numbers |
    """
    if outputs.ndim == 0 or len(outputs) < 2 or not outputs.numel() or not outputs.is_floating_point():
        return None
    given, examples = outputs.detach(), len(outputs)
    width, row_step = given.numel() // examples, -(-examples // ROWS) if given.ndim > 1 else 1
    entries = width * -(-examples // row_step)
    column_step = max(1, -(-entries // ENTRIES))
    listed = given.ndim == 2 and width > 1 and entries <= ENTRIES  # no column may be left out
    array = plain_array(given, torch.float32, torch.float64)
    if array is not None and native.kernels is not None:
        out = np.empty(5)
        out[4] = width
        native.kernels.output_spread(array, examples, row_step, column_step, listed, out[:4])
        return torch.from_numpy(out)
    rows = (given[::row_step].flatten(1) if given.ndim > 1 else given[:, None])[:, ::column_step]
    if rows.is_cpu and not rows.is_neg() and rows.dtype in (torch.float32, torch.float64):
        with np.errstate(all="ignore"):  # NumPy's calls cost less
            y = lent(rows).astype(np.float64)
            confidence = _confidence(y, y.max(1)[:, None], np.exp) if listed else np.nan
            return torch.from_numpy(np.array([*_numbers(y), confidence, width], np.float64))
    with plain_arithmetic(rows.device):
        z = rows.double()
        numbers = [*_numbers(z), *([_confidence(z, z.amax(1)[:, None], torch.exp)] if listed else [])]
        rest = [] if listed else [torch.full_like(numbers[0], torch.nan)]
        return torch.stack([*numbers, *rest, torch.full_like(numbers[0], width)])


TOLERANCE = 1e-4
"""Of the range of the gradient: what rounding may do to its order."""


def gradient_disorder(outputs: Tensor, gradient: Tensor) -> Tensor:
    """Share of neighbours, by output, of which the higher one has the lower gradient; an output an example.

    0 where the gradient is a rising function of the output alone, as with a convex loss whose targets are the same for
    all examples. About 1/2 where it is not. NaN if the gradient is the same for all, or not finite.
    """
    order = outputs.reshape(-1).argsort()
    along = gradient.reshape(-1)[order].double()
    span = along.max() - along.min()
    share = (along.diff() < -TOLERANCE * span).double().mean()
    return torch.where((span > 0) & span.isfinite(), share, torch.nan)


def _confidence(y: Any, highest: Any, exp: Any) -> Any:
    return (1 / exp(y - highest).sum(1)).mean()


def _numbers(y: Any) -> tuple[Any, Any, Any]:
    """Operators alone, which arrays and tensors share."""
    n, d = y.shape
    apart = y - y.mean(0)
    power = (apart * apart).sum()
    unit = y / (y * y).sum(1)[:, None] ** 0.5
    total = unit.sum(0)
    gram = apart @ apart.T if n <= d else apart.T @ apart
    return (power / (n * d)) ** 0.5, (total @ total - n) / (n * (n - 1)), power * power / (gram * gram).sum()
