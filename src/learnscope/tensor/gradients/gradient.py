"""Statistics of gradients, cheap enough for every step."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype, plain, plain_arithmetic
from learnscope.tensor.gradients.few import few_statistics
from learnscope.tensor.kernels import COMPILED_DTYPES, Form, compiled_gradient_partials, wants_compiler
from learnscope.tensor.rows import CACHED, SMALLEST_SAFE, WIDTH, Batch, Pack, batches, plan, workspace

PACK_BELOW = 1 << 15
"""Smaller gradients are packed: half a dozen calls per tensor take longer than copying 128 KiB."""

CHUNK_ROWS = 2048
"""Rows reduced at a time on a CPU, so that they are still in the cache when they are read again."""

LARGEST_SAFE = 2.0**127
"""A float32 sum of squares beyond this may have overflowed."""

SQUARES, ZEROS, NAN, INF = range(4)

_PLAIN = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


@dataclass(frozen=True, kw_only=True)
class GradientTable:
    """Statistics of gradients, one entry per tensor, float64 on the first gradient's device, without a host sync."""

    sum_squares: Tensor
    """Σg²"""
    zeros: Tensor
    """entries with g = 0, with those that a sparse gradient does not store"""
    nan: Tensor
    """entries with g = NaN; they make `sum_squares` NaN"""
    inf: Tensor
    """entries with g = ±∞"""

    @classmethod
    def uncounted(cls, sum_squares: Tensor) -> "GradientTable":
        """Squares alone, where nobody asks for the counts: those are NaN."""
        unknown = _unknown(len(sum_squares), sum_squares.device)
        return cls(sum_squares=sum_squares, zeros=unknown, nan=unknown, inf=unknown)


@functools.lru_cache(maxsize=8)
def _unknown(count: int, device: torch.device) -> Tensor:
    return torch.full((count,), torch.nan, dtype=torch.float64, device=device)


def gradient_statistics(grads: Sequence[Tensor], *, form: Form = "auto") -> GradientTable:
    """Statistics of every gradient, accurate at any magnitude: a norm of 1e-30 is not 0, one of 1e30 is finite.

    `form` is explained in `delta_statistics`.

    >>> table = gradient_statistics([torch.tensor([3.0, 0.0, -4.0])])
    >>> table.sum_squares.tolist(), table.zeros.tolist()
    ([25.0], [1.0])
    """
    table = _statistics(grads, form, counting=True)
    return GradientTable(sum_squares=table[SQUARES], zeros=table[ZEROS], nan=table[NAN], inf=table[INF])


def sum_squares(tensors: Sequence[Tensor], *, form: Form = "auto") -> Tensor:
    """Σt² of every tensor, `[tensors]` float64 on the first tensor's device.

    >>> sum_squares([torch.tensor([3.0, 4.0]), torch.tensor(2.0)]).tolist()
    [25.0, 4.0]
    """
    squares = _squares_of_whole_rows(tensors)
    return _statistics(tensors, form, counting=False)[SQUARES] if squares is None else squares


def _squares_of_whole_rows(tensors: Sequence[Tensor]) -> Tensor | None:
    """Σt² of small float32 tensors on a CPU that can be viewed as whole rows, as adapters' can: one call for each.

    None for any other tensors, and where a row may have under- or overflowed (a row of zeros among them).
    """
    lengths = tuple(map(Tensor.numel, tensors))
    layout = row_layout(lengths)
    if layout is None or {t.dtype for t in tensors} != {torch.float32} or set(map(type, tensors)) != {Tensor}:
        return None
    places, starts = layout
    rows = np.empty(places[-1].stop, np.float32)
    try:
        with np.errstate(all="ignore"):  # what overflows is seen below
            for tensor, place in zip(tensors, places, strict=True):
                # NumPy's product of rows takes half the time of torch's norm, mostly by its call
                matrix = tensor.numpy().reshape(-1, WIDTH)
                np.vecdot(matrix, matrix, rows[place])
    except (RuntimeError, TypeError):  # sparse, on another device, or with a history
        return None
    if not (rows.min() >= SMALLEST_SAFE and rows.max() <= LARGEST_SAFE):
        return None
    squares: NDArray[np.float64] = np.add.reduceat(rows, starts, dtype=np.float64)
    return torch.from_numpy(squares)


@functools.lru_cache(maxsize=64)
def row_layout(lengths: tuple[int, ...]) -> tuple[list[slice], NDArray[np.int64]] | None:
    """The rows of tensors with these numbers of entries and the first of each; None if not all are whole rows, and few
    enough to be read in one call each."""
    if not lengths or not all(length and length < PACK_BELOW and length % WIDTH == 0 for length in lengths):
        return None
    ends = np.cumsum([length // WIDTH for length in lengths])
    starts = np.concatenate([[0], ends[:-1]])
    return list(map(slice, starts.tolist(), ends.tolist())), starts


def row_squares(rows: Tensor) -> Tensor:
    """Σx² of every row of a matrix, `[rows]` float64, accurate at any magnitude."""
    if rows.device.type != "cpu" or rows.dtype is not torch.float32:
        return _reduce(rows, compiled=False, counting=False)[SQUARES]
    out: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square_()[None]
    _put_right(rows, out, _suspects(out[SQUARES]))
    return out[SQUARES]


def _statistics(tensors: Sequence[Tensor], form: Form, *, counting: bool) -> Tensor:
    """`[4, tensors]`, or `[1, tensors]` with the squares alone."""
    few = few_statistics(tensors, counting=counting) if form == "auto" else None
    if few is not None:
        return torch.from_numpy(few)
    device = tensors[0].device if tensors else torch.device("cpu")
    with plain_arithmetic(device):
        held = [stored(index, tensor) for index, tensor in enumerate(tensors)]
        compiled = wants_compiler(sum(values.numel() for values in held), form)
        table = torch.zeros(4 if counting else 1, len(tensors), dtype=torch.float64, device=device)
        layout = plan(tuple((values.numel(), values.dtype, values.device) for values in held), PACK_BELOW, CACHED)
        padding = layout.padding.copy()
        for pack in layout.packs:
            batch = pack.fill(held)
            if table.is_cpu and batch.rows[0].is_cpu and batch.rows[0].dtype is torch.float32:
                table.numpy()[:, pack.members] = _of_pack(batch.rows[0], pack, counting)
            else:
                _add(table, batch, compiled=False)
        for index in layout.large:
            if not compiled and table.is_cpu and _is_rows(held[index]):
                table.numpy()[:, index] = _of_large(held[index].view(-1, WIDTH), counting)
                continue
            read = sum(_add(table, batch, compiled, index) for batch in batches([(held[index],)], PACK_BELOW))
            padding[index] = read - held[index].numel()
        if counting:
            # Entries that a sparse gradient does not store are zero; the padding of a row is not an entry.
            unread = [t.numel() - part.numel() - gap for t, part, gap in zip(tensors, held, padding, strict=True)]
            if table.is_cpu:
                table.numpy()[ZEROS] += unread
            else:
                table[ZEROS] += torch.tensor(unread, dtype=torch.float64, device="cpu").to(device, non_blocking=True)
    return table


def _is_rows(tensor: Tensor) -> bool:
    """Whether a tensor is whole rows of float32 in the memory of the host, as large ones are in most models."""
    is_float = tensor.is_cpu and tensor.dtype is torch.float32
    return is_float and tensor.numel() % WIDTH == 0 and tensor.is_contiguous()


def _of_large(rows: Tensor, counting: bool) -> NDArray[np.float64]:
    """The statistics of one tensor, `[4 or 1]`."""
    total = np.zeros(4 if counting else 1)
    for start in range(0, len(rows), CACHED // WIDTH):
        chunk = rows[start : start + CACHED // WIDTH]
        norms = torch.linalg.vector_norm(chunk, dim=1).numpy().astype(np.float64)
        if norms.min() >= SMALLEST_SAFE**0.5 and norms.max() < np.inf:
            total[SQUARES] += norms @ norms
            if counting:
                total[ZEROS] += _count_zeros(chunk)
        else:
            total += _reduce(chunk, compiled=False, counting=counting).sum(1).numpy()
    return total


def _of_pack(rows: Tensor, pack: Pack, counting: bool) -> NDArray[np.float64]:
    """The statistics of each member of a pack of float32 on a CPU, `[4 or 1, members]`: few calls, as rows are few."""
    out = np.zeros((4 if counting else 1, len(rows)))
    out[SQUARES] = torch.linalg.vector_norm(rows, dim=1).numpy()
    out[SQUARES] *= out[SQUARES]
    # most gradients have no zeros, and a look at all of them together is cheaper than a count of each row
    has_zeros = counting and _count_zeros(rows) != pack.padding.sum()
    if has_zeros:
        out[ZEROS] = torch.eq(rows, 0, out=workspace("count", len(rows), torch.float32, rows.device)).sum(1).numpy()
    if not (out[SQUARES].min() >= SMALLEST_SAFE and out[SQUARES].max() < np.inf):
        table = torch.from_numpy(out)
        suspect = _suspects(table[SQUARES])
        if counting:
            suspect &= table[ZEROS] != WIDTH  # a row of zeros is small and right
        _put_right(rows, table, suspect)
    sums: NDArray[np.float64] = np.add.reduceat(out, pack.starts, axis=1)
    if counting and not has_zeros:
        sums[ZEROS] = pack.padding
    return sums


def _count_zeros(rows: Tensor) -> int:
    is_zero = workspace("zeros", len(rows), torch.bool, rows.device).numpy()
    return int(np.count_nonzero(np.equal(rows.numpy(), 0, out=is_zero)))


def stored(index: int, grad: Tensor) -> Tensor:
    """The entries of a gradient that are in memory, as an ordinary tensor."""
    if type(grad) is Tensor and grad.dtype in _PLAIN and grad.layout is torch.strided and not grad.is_inference():
        return grad  # as nearly all are
    if not grad.is_floating_point():
        raise TypeError(f"gradient {index} is {grad.dtype}: statistics need floats")
    grad = plain(grad)
    # Entries of an uncoalesced gradient that share an index have to be added before they are squared.
    return grad.coalesce().values() if grad.layout is torch.sparse_coo else grad


def _add(table: Tensor, batch: Batch, compiled: bool, index: int | None = None) -> int:
    """Add the rows of a batch to column `index`, or to the columns of their owners; returns the entries read."""
    rows = batch.rows[0]
    partials = _reduce(rows, compiled, counting=len(table) > 1).to(table.device)
    if index is not None:
        table[:, index] += partials.sum(1)
    elif isinstance(batch.owner, Tensor):
        table.index_add_(1, batch.owner.to(table.device), partials)
    return rows.numel()


def _reduce(rows: Tensor, compiled: bool, *, counting: bool) -> Tensor:
    """The statistics of each row, `[4 or 1, rows]` in float64."""
    if rows.device.type != "cpu":
        return _unbranched(rows)[: 4 if counting else 1]
    if rows.dtype is torch.float64:
        return _exact(rows, counting)
    out = torch.zeros(4 if counting else 1, len(rows), dtype=torch.float64, device="cpu")
    use_kernel = compiled and len(rows) > 1 and rows.dtype in COMPILED_DTYPES
    fused = compiled_gradient_partials(rows) if use_kernel else None
    if fused is not None:
        out[:2] = fused[: len(out)]
    else:
        work = workspace("count", min(CHUNK_ROWS, len(rows)), torch.float32, rows.device)
        for start in range(0, len(rows), CHUNK_ROWS):
            chunk = rows[start : start + CHUNK_ROWS].float()
            part = out[:, start : start + CHUNK_ROWS]
            part[SQUARES] = torch.linalg.vector_norm(chunk, dim=1)
            if counting:
                part[ZEROS] = torch.eq(chunk, 0, out=work[: len(chunk)]).sum(1)
        out[SQUARES].square_()
    suspect = _suspects(out[SQUARES])
    if counting:
        suspect &= out[ZEROS] != rows.shape[1]  # a row of zeros is small and right
    _put_right(rows, out, suspect)
    return out


def _suspects(squares: Tensor) -> Tensor:
    """Rows whose squares may have under- or overflowed, or are not finite."""
    return ~(squares >= SMALLEST_SAFE) | squares.isinf()


def _put_right(rows: Tensor, out: Tensor, suspect: Tensor) -> None:
    """Compute the suspect rows again in float64."""
    if not suspect.any():
        return
    counting = len(out) > 1
    again = suspect.nonzero().squeeze(1)
    for start in range(0, len(again), CHUNK_ROWS):
        some = again[start : start + CHUNK_ROWS]
        # no copies are needed if all rows are suspect, as in an update of frozen weights
        chunk = rows[start : start + CHUNK_ROWS] if len(again) == len(rows) else rows[some]
        if not counting and not chunk.any():
            continue  # 0, as it should be
        out[:, some] = _exact(chunk, counting)


def _exact(rows: Tensor, counting: bool) -> Tensor:
    wide = rows.double()
    if not counting:
        return wide.square().sum(1)[None]
    sums = [wide.square().sum(1), (wide == 0).sum(1), wide.isnan().sum(1), wide.isinf().sum(1)]
    return torch.stack([column.double() for column in sums])


def _unbranched(rows: Tensor) -> Tensor:
    """The same without a host sync: each row is scaled by its largest entry before it is squared."""
    wide = rows.to(arithmetic_dtype(rows))
    size = wide.abs()
    largest = size.amax(1)
    scale = torch.where(largest.isfinite() & (largest > 0), largest, 1.0)
    squares = (size / scale[:, None]).square_().sum(1).double() * scale.double().square()
    counts = [(wide == 0).sum(1), wide.isnan().sum(1), wide.isinf().sum(1)]
    return torch.stack([squares, *(count.double() for count in counts)])
