"""Statistics of gradients, cheap enough for every step."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype, plain, plain_arithmetic
from learnscope.tensor.gradients.host import INF, NAN, SQUARES, ZEROS, host_statistics
from learnscope.tensor.kernels import COMPILED_DTYPES, Form, compiled_gradient_partials, wants_compiler
from learnscope.tensor.rows import CACHED, SMALLEST_SAFE, Batch, batches, plan, workspace

PACK_BELOW = 1 << 15
"""Smaller gradients are packed: half a dozen calls per tensor take longer than copying 128 KiB."""

CHUNK_ROWS = 2048
"""Rows reduced at a time on a CPU, so that they are still in the cache when they are read again."""

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
    at_largest: Tensor
    """entries as large as the largest one, without their sign; NaN if that is 0, if one is not finite, or if nobody
    counted them, as it takes another look on a device"""

    @classmethod
    def uncounted(cls, sum_squares: Tensor) -> "GradientTable":
        """Squares alone, where nobody asks for the counts: those are NaN."""
        unknown = _unknown(len(sum_squares), sum_squares.device)
        return cls(sum_squares=sum_squares, zeros=unknown, nan=unknown, inf=unknown, at_largest=unknown)


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
    on_host = host_statistics(grads) if form == "auto" else None
    if on_host is None:
        table = _statistics(grads, form, counting=True)
        unknown = _unknown(len(grads), table.device)
        return GradientTable(**_columns(table), at_largest=unknown)
    squares, zeros, nan, inf, _, at_largest = torch.from_numpy(on_host).unbind()
    return GradientTable(sum_squares=squares, zeros=zeros, nan=nan, inf=inf, at_largest=at_largest)


def sum_squares(tensors: Sequence[Tensor], *, form: Form = "auto") -> Tensor:
    """Σt² of every tensor, `[tensors]` float64 on the first tensor's device.

    >>> sum_squares([torch.tensor([3.0, 4.0]), torch.tensor(2.0)]).tolist()
    [25.0, 4.0]
    """
    on_host = host_statistics(tensors) if form == "auto" else None
    if on_host is not None:
        return torch.from_numpy(on_host[SQUARES])
    return _statistics(tensors, form, counting=False)[SQUARES]


def _columns(table: Tensor) -> dict[str, Tensor]:
    return {"sum_squares": table[SQUARES], "zeros": table[ZEROS], "nan": table[NAN], "inf": table[INF]}


def row_squares(rows: Tensor) -> Tensor:
    """Σx² of every row of a matrix, `[rows]` float64, accurate at any magnitude."""
    if rows.device.type != "cpu" or rows.dtype is not torch.float32:
        return _reduce(rows, compiled=False, counting=False)[SQUARES]
    out: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square_()[None]
    _put_right(rows, out, _suspects(out[SQUARES]))
    return out[SQUARES]


def _statistics(tensors: Sequence[Tensor], form: Form, *, counting: bool) -> Tensor:
    """`[4, tensors]`, or `[1, tensors]` with the squares alone."""
    device = tensors[0].device if tensors else torch.device("cpu")
    with plain_arithmetic(device):
        held = [stored(index, tensor) for index, tensor in enumerate(tensors)]
        compiled = wants_compiler(sum(values.numel() for values in held), form)
        table = torch.zeros(4 if counting else 1, len(tensors), dtype=torch.float64, device=device)
        layout = plan(tuple((values.numel(), values.dtype, values.device) for values in held), PACK_BELOW, CACHED)
        padding = layout.padding.copy()
        for pack in layout.packs:
            _add(table, pack.fill(held), compiled=False)
        for index in layout.large:
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
