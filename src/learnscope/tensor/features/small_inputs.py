"""The statistics of `learnscope.tensor.features.inputs` in the memory of the host: of text by a kernel in C, and of
small inputs by NumPy, whose calls cost less than torch's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope import native
from learnscope.tensor.hashing import mixed
from learnscope.tensor.host import lent, plain_array

SMALL = 2**15
"""Entries of a tensor up to which NumPy is used."""
_WORDS = {torch.float32: np.int32, torch.float64: np.int64, torch.int64: np.int64}


def is_small(tensor: Tensor) -> bool:
    return tensor.is_cpu and 0 < tensor.numel() <= SMALL and tensor.dtype in _WORDS and not tensor.is_neg()


def host_text(tokens: Tensor, padding: int | None, rows: int, least: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """Of tokens (N, D) `token_numbers`, and of the first rows `row_hashes`, with `long_enough` for `least` of them.

    None where there is no kernel for them.
    """
    given = plain_array(tokens, torch.int64)
    if given is None or not given.size or native.kernels is None:
        return None
    numbers, hashes, comparable = np.empty(2), np.empty(rows, np.int64), np.empty(rows, np.bool_)
    known = None if padding is None else np.array([padding], np.int64)
    native.kernels.text_numbers(given, given.shape[1], known, least, numbers, hashes, comparable)
    return torch.from_numpy(numbers), torch.from_numpy(hashes), torch.from_numpy(comparable)


def small_moments(inputs: Tensor) -> Tensor:
    """As `number_moments`."""
    values = lent(inputs).astype(np.float64).reshape(-1)
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
    values = lent(outputs).astype(np.float64).reshape(-1)
    return torch.from_numpy(np.array(math.sqrt(values @ values / len(values))))


def small_hashes(rows: Tensor, salt: Tensor) -> tuple[Tensor, Tensor]:
    """As `row_hashes`, of rows (N, D) without padding."""
    words = np.ascontiguousarray(lent(rows)).view(_WORDS[rows.dtype]).astype(np.int64)
    salted: Any = words ^ salt.numpy()
    hashes = np.asarray(mixed(salted).sum(1))  # operators alone, as torch has them
    return torch.from_numpy(hashes), torch.from_numpy((words != words[:, :1]).any(1))


def small_token_numbers(tokens: Tensor) -> Tensor:
    """As `token_numbers`, of whole numbers."""
    ordered = np.sort(lent(tokens), axis=None)
    different = 1 + np.count_nonzero(ordered[1:] != ordered[:-1])
    return torch.from_numpy(np.array([ordered[-1], different], np.float64))


def small_agreement(rows: Tensor, neighbours: int) -> tuple[NDArray[np.float64], bool]:
    """Of rows (N, D): by column, how often a row agrees with the next few ones, and whether all of them always do."""
    values = lent(rows)
    longer = np.concatenate([values[-neighbours:], values])  # the last rows come before the first
    agree = np.empty((neighbours, *values.shape), np.bool_)
    for shift in range(neighbours):
        np.equal(longer[shift : shift + len(values)], values, out=agree[shift])
    counts = np.count_nonzero(agree.reshape(-1, values.shape[1]), axis=0)
    return counts / (neighbours * len(values)), bool((counts == neighbours * len(values)).all())


def small_differing(rows: Tensor) -> NDArray[np.int64]:
    """Of rows (N, D): how many entries differ from what the row begins with, or from what it ends with if less do."""
    values = lent(rows)
    at_start, at_end = (np.count_nonzero(values != values[:, [end]], axis=1) for end in (0, -1))
    least: NDArray[np.int64] = np.minimum(at_start, at_end)
    return least
