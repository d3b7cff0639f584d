"""Statistics of gradients, cheap enough for every step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .context import plain, plain_arithmetic
from .kernels import COMPILED_DTYPES, Form, compiled_gradient_partials, wants_compiler
from .packs import plan, workspace
from .rows import SMALLEST_SAFE, Batch, batches

PACK_BELOW = 1 << 17
"""Gradients are packed up to this size: half a dozen calls per tensor cost more than copying 512 KiB."""

CHUNK_ROWS = 512
"""Rows reduced at a time on a CPU, so that the later readings of a row find it in the cache."""

SQUARES, LARGEST, ZEROS, NAN, INF = range(5)


@dataclass(frozen=True, kw_only=True)
class GradientTable:
    """Statistics of gradients, one entry per tensor, float64 on the first gradient's device.

    Nothing is waited for: on an accelerator the values may still be under way.
    """

    sum_squares: Tensor
    """Σg²"""
    largest: Tensor
    """max|g|, 0 for an empty tensor"""
    zeros: Tensor
    """entries with g = 0, including those that a sparse gradient does not store"""
    nan: Tensor
    """entries with g = NaN; they make `sum_squares` and `largest` NaN"""
    inf: Tensor
    """entries with g = ±∞"""


def gradient_statistics(grads: Sequence[Tensor], *, form: Form = "auto") -> GradientTable:
    """Statistics of every gradient, right at any magnitude: a norm of 1e-30 is not 0, one of 1e30 is finite.

    `form` means what it means for `delta_statistics`.

    >>> table = gradient_statistics([torch.tensor([3.0, 0.0, -4.0])])
    >>> table.sum_squares.tolist(), table.largest.tolist(), table.zeros.tolist()
    ([25.0], [4.0], [1.0])
    """
    device = grads[0].device if grads else torch.device("cpu")
    with plain_arithmetic(device):
        stored = [_stored(index, grad) for index, grad in enumerate(grads)]
        compiled = wants_compiler(sum(values.numel() for values in stored), form)
        table = torch.zeros(5, len(grads), dtype=torch.float64, device=device)
        layout = plan(tuple((values.numel(), values.dtype, values.device) for values in stored), PACK_BELOW)
        padding = layout.padding.copy()
        for pack in layout.packs:
            _add(table, pack.fill(stored), compiled=False)
        for index in layout.large:
            read = sum(_add(table, batch, compiled, index) for batch in batches([(stored[index],)], PACK_BELOW))
            padding[index] = read - stored[index].numel()
        # What a sparse gradient leaves out is zero; what was added to fill a row was none of its entries.
        unread = [grad.numel() - part.numel() - gap for grad, part, gap in zip(grads, stored, padding, strict=True)]
        table[ZEROS] += torch.tensor(unread, dtype=torch.float64, device="cpu").to(device, non_blocking=True)
    return GradientTable(
        sum_squares=table[SQUARES], largest=table[LARGEST], zeros=table[ZEROS], nan=table[NAN], inf=table[INF]
    )


def sum_squares(tensors: Sequence[Tensor]) -> Tensor:
    """Σt² of every tensor, `[tensors]` float64 on the first tensor's device.

    >>> sum_squares([torch.tensor([3.0, 4.0]), torch.tensor(2.0)]).tolist()
    [25.0, 4.0]
    """
    return gradient_statistics(tensors).sum_squares


def _stored(index: int, grad: Tensor) -> Tensor:
    if not grad.is_floating_point():
        raise TypeError(f"gradient {index} is {grad.dtype}: statistics need floats")
    grad = plain(grad)
    # Entries of an uncoalesced gradient that share a place have to be added before they are squared.
    return grad.coalesce().values() if grad.layout is torch.sparse_coo else grad


def _add(table: Tensor, batch: Batch, compiled: bool, index: int | None = None) -> int:
    """Add the rows of a batch to the column `index`, or to the columns the batch names; the entries read."""
    rows = batch.rows[0]
    partials = _reduce(rows, compiled).to(table.device)
    if index is not None:
        largest = torch.maximum(table[LARGEST, index], partials[LARGEST].amax())
        table[:, index] += partials.sum(1)
        table[LARGEST, index] = largest
    elif isinstance(batch.owner, Tensor):
        owner = batch.owner.to(table.device)
        largest = table[LARGEST].scatter_reduce(0, owner, partials[LARGEST], "amax")
        table.index_add_(1, owner, partials)
        table[LARGEST] = largest
    return rows.numel()


def _reduce(rows: Tensor, compiled: bool) -> Tensor:
    """The five statistics of each row, `[5, rows]` in float64."""
    if rows.device.type != "cpu":
        return _unbranched(rows)
    if rows.dtype is torch.float64:
        return _exact(rows)
    out = torch.zeros(5, len(rows), dtype=torch.float64, device="cpu")
    fused = None
    if compiled and len(rows) > 1 and rows.dtype in COMPILED_DTYPES:
        fused = compiled_gradient_partials(rows)
    if fused is None:
        _chunked(rows, out)
    else:
        out[:3] = fused
    squares = out[SQUARES]
    suspect = ~squares.isfinite() | ((squares < SMALLEST_SAFE) & (out[LARGEST] != 0))
    if suspect.any():
        again = suspect.nonzero().squeeze(1)
        for start in range(0, len(again), CHUNK_ROWS):
            some = again[start : start + CHUNK_ROWS]
            out[:, some] = _exact(rows[some])
    return out


def _chunked(rows: Tensor, out: Tensor) -> None:
    work = workspace("count", min(CHUNK_ROWS, len(rows)), torch.float32, rows.device)
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS].float()
        here = out[:, start : start + CHUNK_ROWS]
        here[SQUARES] = torch.linalg.vector_norm(chunk, dim=1)
        here[LARGEST] = torch.maximum(chunk.amax(1), chunk.amin(1).neg_())
        here[ZEROS] = torch.eq(chunk, 0, out=work[: len(chunk)]).sum(1)
    out[SQUARES].square_()


def _exact(rows: Tensor) -> Tensor:
    wide = rows.double()
    size = wide.abs()
    sums = [wide.square().sum(1), size.amax(1), (wide == 0).sum(1), wide.isnan().sum(1), wide.isinf().sum(1)]
    return torch.stack([column.double() for column in sums])


def _unbranched(rows: Tensor) -> Tensor:
    """The same without a look at the values: each row is scaled by its largest entry before it is squared."""
    wide = rows if rows.dtype is torch.float64 else rows.float()
    size = wide.abs()
    largest = size.amax(1)
    scale = torch.where(largest.isfinite() & (largest > 0), largest, 1.0)
    squares = (size / scale[:, None]).square_().sum(1).double() * scale.double().square()
    counts = [(wide == 0).sum(1), wide.isnan().sum(1), wide.isinf().sum(1)]
    return torch.stack([squares, largest.double(), *(count.double() for count in counts)])
