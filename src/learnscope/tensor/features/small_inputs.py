"""The statistics of `learnscope.tensor.features.inputs` for small inputs on a CPU, where NumPy's calls cost less."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnscope.tensor.hashing import mixed

SMALL = 2**15
"""Entries of a tensor up to which NumPy is used."""
_WORDS = {torch.float32: np.int32, torch.float64: np.int64, torch.int64: np.int64}


def is_small(tensor: Tensor) -> bool:
    return tensor.is_cpu and 0 < tensor.numel() <= SMALL and tensor.dtype in _WORDS and not tensor.is_neg()


def small_moments(inputs: Tensor) -> Tensor:
    """As `number_moments`."""
    values = inputs.numpy().astype(np.float64).reshape(-1)
    finite = np.isfinite(values)
    if not finite.all():
        values = values[finite]
    count, lost = len(values), len(finite) - len(values)
    if not count:
        return torch.from_numpy(np.array([0.0, math.nan, 0.0, 0.0, lost]))
    mean = values.mean()
    apart, largest = values - mean, max(-values.min(), values.max())
    return torch.from_numpy(np.array([count, mean, apart @ apart, largest, lost], np.float64))


def small_root_mean_square(outputs: Tensor) -> Tensor:
    """As `root_mean_square`."""
    values = outputs.numpy().astype(np.float64).reshape(-1)
    return torch.from_numpy(np.array(math.sqrt(values @ values / len(values))))


def small_hashes(rows: Tensor, salt: Tensor) -> tuple[Tensor, Tensor]:
    """As `row_hashes`, of rows (N, D) without padding."""
    words = np.ascontiguousarray(rows.numpy()).view(_WORDS[rows.dtype]).astype(np.int64)
    salted: Any = words ^ salt.numpy()
    hashes = np.asarray(mixed(salted).sum(1))  # operators alone, as torch has them
    return torch.from_numpy(hashes), torch.from_numpy((words != words[:, :1]).any(1))
