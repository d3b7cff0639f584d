"""Statistics of gradients in the memory of the host, by NumPy: for a model that trains on a CPU, torch's calls take
longer than the sums themselves, and copying small tensors into shared rows as long as both."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.rows import SMALLEST_SAFE, WIDTH, workspace

MOST = 1 << 25
"""Entries of all tensors together from which a compiled kernel or torch's threads are faster."""
IN_PLACE = 1 << 12
"""Entries of a float32 tensor from which its rows are squared where they are."""
FEW = 1 << 14
"""Entries that are copied and squared in float64 at a time."""
CACHED_ROWS = 256
"""Rows that are squared and then looked through for zeros while they are in the cache of one core."""
LARGEST_SAFE = 2.0**127
"""A float32 sum of squares beyond this may have overflowed."""

SQUARES, ZEROS, NAN, INF = range(4)
Numbers = NDArray[np.float64]
_KINDS = frozenset({Tensor, torch.nn.Parameter})
_DTYPES = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


@dataclass(frozen=True, slots=True)
class Layout:
    """What is read row by row where it is, and what is joined with others; by the number of the tensor."""

    whole: Sequence[int]
    places: Sequence[slice]
    """The rows of each of these among all rows."""
    starts: NDArray[np.int64]
    """The first of them."""
    joined: Sequence[Sequence[tuple[int, int]]]
    """Groups of tensors, each from this entry on."""


def host_statistics(tensors: Sequence[Tensor], *, counting: bool) -> Numbers | None:
    """Σt², and with `counting` the zeros, NaN and infinite entries of each, `[1 or 4, tensors]`.

    None for tensors of another kind, which `learnscope.tensor.gradients.gradient` reads by rows.
    """
    layout = _layout(tuple([tensor.numel() for tensor in tensors]))
    if layout is None:
        return None
    arrays = _arrays(tensors)
    matrices = None if arrays is None else _matrices([arrays[index] for index in layout.whole])
    if arrays is None or matrices is None:
        return None
    out = np.zeros((4 if counting else 1, len(tensors)))
    with np.errstate(all="ignore"):  # what is not finite is counted
        if matrices:
            _add_rows(matrices, layout, out)
        for group in layout.joined:
            parts = [arrays[index] if not first else arrays[index].ravel("K")[first:] for index, first in group]
            out[:, [index for index, _ in group]] += _of_joined(parts, counting)
    return out


@functools.lru_cache(maxsize=64)
def _layout(lengths: tuple[int, ...]) -> Layout | None:
    """None if there are no tensors, or too many entries; an empty tensor is in no part of it."""
    total = sum(lengths)
    if not lengths or total >= MOST:
        return None
    in_place = IN_PLACE if total > FEW else MOST
    whole = [index for index, length in enumerate(lengths) if length >= in_place]
    ends = np.cumsum([lengths[index] // WIDTH for index in whole], dtype=np.int64).tolist()
    places = list(map(slice, [0, *ends[:-1]], ends))
    groups: list[list[tuple[int, int]]] = []
    room = 0
    for index, length in enumerate(lengths):
        first = length // WIDTH * WIDTH if length >= in_place else 0
        if first == length:
            continue
        if length - first > room:
            groups.append([])
            room = FEW
        groups[-1].append((index, first))
        room -= length - first
    return Layout(whole, places, np.array([place.start for place in places], np.int64), groups)


def _arrays(tensors: Sequence[Tensor]) -> list[NDArray[np.floating]] | None:
    if not _KINDS.issuperset(map(type, tensors)):
        return None
    try:
        arrays = [tensor.detach().numpy() if tensor.requires_grad else tensor.numpy() for tensor in tensors]
    except (RuntimeError, TypeError):  # sparse, on another device, negated lazily, of a kind that NumPy does not know
        return None
    return arrays if _DTYPES.issuperset([array.dtype for array in arrays]) else None


def _matrices(arrays: Sequence[NDArray[np.floating]]) -> list[NDArray[np.float32]] | None:
    """The whole rows of float32 arrays, in the order of their memory."""
    matrices = []
    for array in arrays:
        if array.dtype != np.float32 or not array.flags.forc:
            return None
        flat = array.ravel("K")
        matrices.append(flat[: len(flat) // WIDTH * WIDTH].reshape(-1, WIDTH))
    return matrices


def _add_rows(matrices: Sequence[NDArray[np.float32]], layout: Layout, out: Numbers) -> None:
    counting = len(out) > 1
    squares = np.empty(layout.places[-1].stop, np.float32)
    for index, place, matrix in zip(layout.whole, layout.places, matrices, strict=True):
        sums = squares[place]
        if not counting:
            np.vecdot(matrix, matrix, sums)
            continue
        for start in range(0, len(matrix), CACHED_ROWS):
            chunk = matrix[start : start + CACHED_ROWS]
            np.vecdot(chunk, chunk, sums[start : start + CACHED_ROWS])
            out[ZEROS, index] += _count_zeros(chunk)
    if squares.min() >= SMALLEST_SAFE and squares.max() <= LARGEST_SAFE:
        out[SQUARES, layout.whole] = np.add.reduceat(squares, layout.starts, dtype=np.float64)
        return
    for index, place, matrix in zip(layout.whole, layout.places, matrices, strict=True):
        out[[SQUARES, NAN, INF] if counting else [SQUARES], index] = _of_rows(matrix, squares[place], counting)


def _count_zeros(rows: NDArray[np.float32]) -> int:
    is_zero = workspace("zeros", len(rows), torch.bool, torch.device("cpu")).numpy()
    return int(np.count_nonzero(np.equal(rows, 0, out=is_zero)))


def _of_rows(matrix: NDArray[np.float32], squares: NDArray[np.float32], counting: bool) -> Numbers:
    """Σt², and what is NaN or infinite, of rows some of which may have under- or overflowed, or are not finite."""
    suspect = ~((squares >= SMALLEST_SAFE) & (squares <= LARGEST_SAFE))
    total = np.zeros(3 if counting else 1)
    total[0] = squares.sum(where=~suspect, dtype=np.float64)
    again = np.flatnonzero(suspect)
    for start in range(0, len(again), CACHED_ROWS):
        # no copy is needed if all rows are suspect, as in an update of frozen weights
        places = slice(start, start + CACHED_ROWS) if len(again) == len(matrix) else again[start : start + CACHED_ROWS]
        rows = matrix[places]
        if not rows.any():
            continue  # 0, as it should be: tokens that the batch did not have
        wide = rows.ravel().astype(np.float64)
        total[0] += wide @ wide
        if counting:
            total[1:] += np.count_nonzero(np.isnan(wide)), np.count_nonzero(np.isinf(wide))
    return total


def _of_joined(arrays: Sequence[NDArray[np.floating]], counting: bool) -> Numbers:
    """The statistics of few entries, in float64."""
    values = np.concatenate(arrays, None, dtype=np.float64)
    starts = _starts(tuple([array.size for array in arrays]))
    out = np.zeros((4 if counting else 1, len(arrays)))
    out[SQUARES] = np.add.reduceat(values * values, starts)
    if counting:
        if np.count_nonzero(values) < len(values):
            out[ZEROS] = np.add.reduceat(values == 0, starts, dtype=np.float64)
        if not np.isfinite(out[SQUARES]).all():
            out[NAN] = np.add.reduceat(np.isnan(values), starts, dtype=np.float64)
            out[INF] = np.add.reduceat(np.isinf(values), starts, dtype=np.float64)
    return out


@functools.lru_cache(maxsize=64)
def _starts(lengths: tuple[int, ...]) -> NDArray[np.int64]:
    return np.cumsum([0, *lengths[:-1]], dtype=np.int64)
