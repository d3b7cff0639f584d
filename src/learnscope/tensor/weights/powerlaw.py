"""The exponent of a power law in the tail of a spectrum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.context import plain, plain_arithmetic

FEWEST = 50


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """ρ(λ) ∝ λ^−α above `smallest`, for `tail` eigenvalues; `distance` is the Kolmogorov–Smirnov distance there."""

    alpha: float
    smallest: float
    distance: float
    tail: int


def power_law(eigenvalues: Tensor) -> PowerLaw | None:
    """α = 1 + n/Σ ln(λ/λ_min) over the n eigenvalues from λ_min on (Clauset et al. 2009; Martin & Mahoney).

    λ_min is the eigenvalue for which the tail is closest to its fitted law. Eigenvalues are those of WᵀW, that is σ².
    None if fewer than 50 are positive, one is not finite, or all are equal.
    """
    with plain_arithmetic(eigenvalues.device):
        values = plain(eigenvalues).double().cpu()
        if not bool(values.isfinite().all()):
            return None
        values = values[values > 0].sort().values
        if len(values) < FEWEST:
            return None
        logs, best = values.log(), None
        first_of_equals = torch.cat([torch.tensor([True]), values[1:] > values[:-1]])
        for start in first_of_equals.nonzero().flatten().tolist():
            tail = logs[start:] - logs[start]
            n, total = len(tail), float(tail.sum())
            if total == 0:  # the rest are all equal: no slope
                continue
            alpha = 1 + n / total
            expected = -torch.expm1((1 - alpha) * tail)
            ranks = torch.arange(n + 1, dtype=torch.float64) / n
            distance = float(torch.maximum(ranks[1:] - expected, expected - ranks[:-1]).max())
            if best is None or distance < best.distance:
                best = PowerLaw(alpha, float(values[start]), distance, n)
        return best
