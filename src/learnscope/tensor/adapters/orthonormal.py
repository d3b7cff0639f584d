"""Orthonormal columns with the span of a factor: F = Q R, for many factors of one shape."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WELL_CONDITIONED = 64.0
"""Up to this bound of κ, the condition number of F, R comes from FᵀF = RᵀR: that is twice as fast as reflections for
long, thin factors, and loses κ²·2e-16, which is 1e-12 at most. Factors that are nearly dependent go the other way."""
SMALLEST = 1e-200
"""A squared norm of a column below this has lost digits to underflow, or is zero."""


def orthonormal(factors: Tensor) -> tuple[Tensor, Tensor]:
    """Q [n, d, k] and R [n, k, k] of float64 factors [n, d, k]; each row of a Q is in consecutive memory.

    How a factor is decomposed depends on it alone, not on those beside it.
    """
    if not factors.is_cpu or not factors.numel() or factors.shape[1] < factors.shape[2]:
        return _reflected(factors)
    columns = factors.numpy()
    squares = torch.from_numpy(np.matmul(columns.transpose(0, 2, 1), columns))
    lower, failed = torch.linalg.cholesky_ex(squares)
    unit = torch.eye(factors.shape[2], dtype=torch.float64, device="cpu")
    inverse = torch.linalg.solve_triangular(lower, unit.expand_as(lower), upper=False)
    bound = torch.linalg.matrix_norm(lower) * torch.linalg.matrix_norm(inverse)
    smallest = squares.diagonal(0, 1, 2).amin(1)
    well = (failed == 0) & (bound <= WELL_CONDITIONED) & (smallest >= SMALLEST)  # a NaN is not
    if bool(well.all()):
        return torch.from_numpy(np.matmul(columns, inverse.numpy().transpose(0, 2, 1))), lower.mT
    q, r = _reflected(factors)
    if bool(well.any()):
        q[well] = torch.from_numpy(np.matmul(factors[well].numpy(), inverse[well].numpy().transpose(0, 2, 1)))
        r[well] = lower[well].mT
    return q, r


def _reflected(factors: Tensor) -> tuple[Tensor, Tensor]:
    q, r = torch.linalg.qr(factors)
    return q.contiguous(), r
