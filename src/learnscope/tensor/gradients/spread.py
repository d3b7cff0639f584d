"""Mean and spread of the entries of gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.gradients.gradient import stored
from learnscope.tensor.rows import pieces

SPREAD_CHUNK = 1 << 16
"""Entries whose mean and centred squares are computed at a time, in float64."""


def gradient_spread(grads: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and Σ(g − mean)² of the entries of every gradient, `[grads]` float64 on the first one's device.

    Pieces are centred on their own means and combined by Chan, Golub and LeVeque's rule (1983), so that a spread
    far below the mean is not lost. NaN where an entry is not finite, 0 for an empty gradient.

    >>> mean, centred = gradient_spread([torch.tensor([1.0, 2.0, 3.0])])
    >>> mean.tolist(), centred.tolist()
    ([2.0], [2.0])
    """
    device = grads[0].device if grads else torch.device("cpu")
    with plain_arithmetic(device):
        spreads = [_spread(stored(index, grad), grad.numel()).to(device) for index, grad in enumerate(grads)]
    mean, centred = torch.stack(spreads, 1) if spreads else torch.zeros(2, 0, dtype=torch.float64)
    return mean, centred


def _spread(values: Tensor, entries: int) -> Tensor:
    """Mean and centred squares of `entries` numbers: `values`, and zeros for the rest."""
    counts, means, squares = [], [], []
    limit = SPREAD_CHUNK if values.device.type == "cpu" else SPREAD_CHUNK << 6
    for (part,) in pieces((values,), limit):
        if part.numel():
            variance, mean = torch.var_mean(part.double(), correction=0)
            counts.append(float(part.numel()))
            means.append(mean)
            squares.append(variance * part.numel())
    if not counts:
        return torch.zeros(2, dtype=torch.float64, device=values.device)
    rest = entries - sum(counts)
    n = torch.tensor([*counts, rest], dtype=torch.float64, device="cpu").to(values.device, non_blocking=True)
    mean_of = torch.stack([*means, torch.zeros_like(means[0])])
    mean = (n * mean_of).sum() / entries
    return torch.stack([mean, torch.stack(squares).sum() + (n * (mean_of - mean).square()).sum()])
