"""The sums of `learnscope.tensor.outputs.objective` in the memory of the host: by a kernel in C, and of small outputs
by NumPy, whose calls cost less than torch's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope import native
from learnscope.tensor.host import lent, plain_array

SMALL = 2**15
"""Entries of a tensor up to which NumPy is used."""
_KNOWN = (torch.float32, torch.float64)
NUMBERS, COUNTED = 8, 2
"""How many sums there are of a call, and which of them counts its targets."""


def is_small(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.numel() <= SMALL and tensor.dtype in _KNOWN and not tensor.is_neg()


def host_class_sums(
    rows: Tensor, targets: Tensor, ignore_index: int, weight: Tensor | None, near: float, *, columns: bool
) -> dict[str, NDArray[Any]] | None:
    """As `class_sums`, of rows of all outputs, in one pass over them; None if it takes more, or there is no kernel."""
    given, wanted = plain_array(rows, *_KNOWN), plain_array(targets, torch.int64)
    if given is None or wanted is None or not given.size or native.kernels is None:
        return None
    classes = given.shape[1]
    # one array, cut in three: fewer calls
    held = np.empty(NUMBERS + 2 * (classes + 1), np.int64)
    sums, counts, answers = held[:NUMBERS], held[NUMBERS : NUMBERS + classes + 1], held[NUMBERS + classes + 1 :]
    if not native.kernels.class_counts(given, wanted, ignore_index, _one(near), columns, sums, counts, answers):
        return None
    mass = sums[COUNTED : COUNTED + 1] if weight is None else _mass(counts, weight)
    return {"sums": sums, "target_counts": counts, "predicted_counts": answers, "mass": mass}


@cache
def _one(number: float) -> NDArray[np.float64]:
    return np.array([number])


def host_token_sums(
    tokens: Tensor, wanted: Tensor, ignore_index: int, padding: int | None, shifts: Sequence[int]
) -> Tensor | None:
    """As `token_sums`, of targets (B, places); None where there is no kernel for them."""
    given, targets = plain_array(tokens, torch.int64), plain_array(wanted, torch.int64)
    if given is None or targets is None or native.kernels is None:
        return None
    out, known = np.empty((len(shifts) + 2, 2)), None if padding is None else np.array([padding], np.int64)
    native.kernels.token_counts(given, targets, len(given), ignore_index, known, np.array(shifts, np.int64), out)
    return torch.from_numpy(out)


def _mass(counts: NDArray[np.int64], weight: Tensor | None) -> NDArray[np.float64]:
    """The counted targets, or their weights."""
    mass = counts[:-1].sum() if weight is None else (counts[:-1] * weight.detach().cpu().numpy()).sum()
    return np.array([mass], np.float64)


def small_class_sums(
    rows: Tensor, targets: Tensor, ignore_index: int, weight: Tensor | None, near: float, *, columns: bool
) -> dict[str, NDArray[Any]]:
    """As `class_sums`, of rows of all outputs, and targets that are classes; with `columns`, of these too."""
    given, every = lent(rows), lent(targets.reshape(-1)).astype(np.int64, copy=False)
    classes = given.shape[1]
    ignored = every == ignore_index
    in_range = (every >= 0) & (every < classes)
    if 0 <= ignore_index < classes:
        in_range &= ~ignored
    chosen = np.where(in_range, every, classes)
    counts = np.bincount(chosen, minlength=classes + 1)
    predicted = given.argmax(1) if len(given) else np.zeros(0, np.int64)
    highest = given[np.arange(len(given)), predicted]
    finite = np.isfinite(highest)
    answers = np.bincount(np.where(in_range & finite, predicted, classes), minlength=classes + 1)
    ignored_count = int(ignored.sum())
    sums = [
        ignored_count, int(counts[classes]) - ignored_count, int(in_range.sum()),
        int(((predicted == chosen) & finite).sum()), int(finite.sum()), *_distributions(given, highest, near),
        _over_the_batch(given, near) if columns else 0,
    ]  # fmt: skip
    mass = _mass(counts, weight)
    return {"sums": np.array(sums), "target_counts": counts, "predicted_counts": answers, "mass": mass}


def _distributions(rows: NDArray[Any], highest: NDArray[Any], near: float) -> tuple[int, int]:
    if not len(rows):
        return 0, 0
    with np.errstate(invalid="ignore", over="ignore"):
        probabilities = (rows.min(1) >= 0) & (np.abs(rows.sum(1) - 1) <= near)
        wide = near * max(1.0, math.log(rows.shape[1]))
        below = highest <= wide
        if not below.any():  # most often: some logit of every row is above 0
            return int(probabilities.sum()), 0
        total = np.exp(rows[below]).sum(1)
        logarithms = np.abs(np.log(np.maximum(total, 1e-30))) <= wide
    return int(probabilities.sum()), int(logarithms.sum())


def _over_the_batch(rows: NDArray[Any], near: float) -> int:
    top = rows.max(0)
    with np.errstate(invalid="ignore", over="ignore"):
        if not (top <= 1 + near).any():  # most often: some logit of every column is above 1
            return 0
        wide = near * max(1.0, math.log(len(rows)))
        totals = rows.sum(0)
        probabilities = (rows.min(0) >= 0) & ((np.abs(totals - 1) <= near) | _of_parts(rows, totals, near))
        total = np.exp(np.minimum(rows, 1.0)).sum(0)
        logarithms = (top <= wide) & (np.abs(np.log(np.maximum(total, 1e-30))) <= wide)
    return int((probabilities | logarithms).sum())


def _of_parts(rows: NDArray[Any], totals: NDArray[Any], near: float) -> bool:
    """Whether all columns add up to the same number of parts of one size, and rows do not add up to 1."""
    parts = np.maximum(np.round(totals), 1)
    whole = (np.abs(totals - parts) <= near * np.sqrt(parts)) & (2 * parts <= len(rows)) & (len(rows) % parts == 0)
    if not (whole & (parts == parts[0])).all() or not rows.max() <= 1 + near:
        return False
    return bool((np.abs(rows.sum(1) - 1) > near).any())


def small_touched(gradient: Tensor) -> Tensor:
    """Whether any entry of each column (N, K) is not 0."""
    return torch.from_numpy((lent(gradient) != 0).any(0))
