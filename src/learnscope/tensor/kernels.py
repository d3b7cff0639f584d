"""One pass over rows of (new, old) that gives partial sums per row, compiled or in chunks that stay in the cache."""

import functools
import math
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from learnscope.tensor.context import alias
from learnscope.tensor.rows import SMALLEST_SAFE, WIDTH

PARTIALS = 7
"""total, l1, sum_squares, largest, old_sum_squares, sign_flips, bits_changed; then one for each threshold."""

LARGEST = 3
"""The partial that is combined by a maximum; all others are sums."""

COMPILED_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})

COMPILE_FROM = 1 << 25
"""`form="auto"` compiles from this many entries on: with fewer, compiling takes longer than it saves."""

Form = Literal["auto", "compiled", "chunked"]
Rows = Callable[..., tuple[Tensor, ...]]


SHARED = 1024
"""More than a count of a row can be: two counts in one sum, one of them in units of this."""


def _row_partials(new: Tensor, old: Tensor, thresholds: Tensor) -> tuple[Tensor, ...]:
    """Partials of each row in float32, for rows without NaN, Inf or extreme magnitudes; and their float64 totals.

    `thresholds` ascend. Counts are float32 sums of zeros and ones, exact up to 2²⁴: a boolean sum would be converted
    to int64 lane by lane and take ten times as long. Of two conditions of which the first implies the second, both
    counts come from one sum. Bits are compared after widening, which is one-to-one.
    """
    new, old = new.view(-1, 512).float(), old.view(-1, 512).float()
    change = new - old
    size = change.abs()
    # ∞·new keeps only the sign of new (NaN for a zero), so a product with a subnormal cannot underflow.
    flipped = (new * math.inf) * old < 0
    differs = new.view(torch.int32) != old.view(torch.int32)
    sums = [change.sum(1), size.sum(1), (change * change).sum(1), size.amax(1), (old * old).sum(1)]
    sums += _both_counts(flipped, differs)
    within = [size <= threshold for threshold in thresholds.unbind()]
    for low, high in zip(within[::2], within[1::2], strict=False):
        sums += _both_counts(low, high)
    sums += [within[-1].float().sum(1)] if len(within) % 2 else []
    return _with_totals(torch.stack(sums))


def _both_counts(rarer: Tensor, wider: Tensor) -> list[Tensor]:
    """How often each of two conditions holds in every row; wherever `rarer` holds, `wider` does."""
    both = torch.where(rarer, 1.0 + SHARED, torch.where(wider, 1.0, 0.0)).sum(1)
    rare = (both * (1 / SHARED)).floor()
    return [rare, both - SHARED * rare]


def _with_totals(rows: Tensor) -> tuple[Tensor, ...]:
    """The partials, and over all rows in float64: their sums, their maximum for the largest, how many are suspect."""
    totals = [row.amax().double() if at == LARGEST else row.double().sum() for at, row in enumerate(rows.unbind())]
    return rows, torch.stack([*totals, suspect_rows(rows).double().sum()])


def suspect_rows(rows: Tensor) -> Tensor:
    """Which partials float32 may not hold: not finite, or squares so small that terms may have underflowed."""
    l1, squares, largest, old_squares = rows[1], rows[2], rows[LARGEST], rows[4]
    finite = (l1 + squares + largest + old_squares) < math.inf
    return ~finite | ((squares < SMALLEST_SAFE) & (largest > 0)) | (old_squares < SMALLEST_SAFE)


def _gradient_partials(rows: Tensor) -> tuple[Tensor, ...]:
    """Sum of squares and number of zeros of each row."""
    rows = rows.view(-1, 512).float()
    return (rows * rows).sum(1), (rows == 0).float().sum(1)


@functools.cache
def _compiled(function: Rows, key: str) -> Rows:
    # The compiler keeps its variants, and its limit on their number, per code object: one for each key.
    name = key.replace("torch.", "")
    twin: Rows = types.FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)
    # without `fullgraph` a function past its limit would quietly run uncompiled, on copies of everything
    return torch.compile(twin, dynamic=True, fullgraph=True)


_broken: set[str] = set()
_ready: set[str] = set()

REHEARSAL = 1 << 20
"""Entries of the call that a kernel is first compiled for. The compiler decides by the first length it sees
whether to use all threads, so that length must not depend on which tensor comes first."""


def run_compiled(
    function: Rows,
    vectors: Sequence[Tensor],
    *constants: Tensor,
    rehearsal: Sequence[tuple[int, ...]] | None = None,
) -> tuple[Tensor, ...] | None:
    """What `function` returns, from one kernel per combination of dtypes; None, with one warning, if compiling fails.

    Vectors are flat, so that only their length varies. For matrices, `rehearsal` gives the shapes to compile for.
    """
    device = vectors[0].device
    kinds = [str(vector.dtype) for vector in vectors] + [str(len(constant)) for constant in constants]
    key = "_".join([function.__name__, *kinds, device.type])
    if key in _broken:
        return None
    try:
        compiled = _compiled(function, key)
        # the guard makes compiled models run eagerly, and would do the same to these kernels
        with torch.compiler.set_stance("default"):
            if key not in _ready:
                shapes = rehearsal or [(REHEARSAL,)] * len(vectors)
                empty = [torch.zeros(s, dtype=v.dtype, device=device) for s, v in zip(shapes, vectors, strict=True)]
                compiled(*empty, *constants)
                _ready.add(key)
            # not views: the compiler would make a variant for views of each size of tensor
            return compiled(*(alias(vector) for vector in vectors), *constants)
    except Exception as error:  # noqa: BLE001 - a missing C++ compiler surfaces as any of a dozen types
        if not _broken:
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            message = f"torch.compile does not work here; statistics use the slower chunked form ({reason})"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        _broken.add(key)
        return None


def _stacked(partials: tuple[Tensor, ...] | None) -> Tensor | None:
    return None if partials is None else torch.stack(partials)


def compiled_partials(new: Tensor, old: Tensor, thresholds: Tensor) -> tuple[Tensor, ...] | None:
    """The partials of each row and their totals by one fused kernel, or None where compiling fails."""
    return run_compiled(_row_partials, (new.view(-1), old.view(-1)), thresholds)


def compiled_gradient_partials(rows: Tensor) -> Tensor | None:
    """The gradient partials of each row by one fused kernel, or None where compiling fails."""
    return _stacked(run_compiled(_gradient_partials, (rows.view(-1),)))


def wants_compiler(entries: int, form: Form) -> bool:
    """Whether to compile: decided by size and machine, never by measured time."""
    if form == "auto":
        return entries >= COMPILE_FROM and compiler_available()
    if form not in ("compiled", "chunked"):
        raise ValueError(f"form is 'auto', 'compiled' or 'chunked', not {form!r}")
    return form == "compiled" and compiler_available()


@functools.cache
def compiler_available() -> bool:
    """Whether `torch.compile` produces working code here; tried once per process."""
    partials = compiled_gradient_partials(torch.ones(4, WIDTH, dtype=torch.float32, device="cpu"))
    return partials is not None and partials.tolist() == [[WIDTH] * 4, [0] * 4]


class ChunkedPass:
    """The same partials with plain operations on chunks of rows; buffers are made once and reused."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        # a buffer of 2 MiB stays in a CPU's cache; an accelerator needs fewer, larger launches
        self.rows = (1024 if device.type == "cpu" else 8192) * 4 // dtype.itemsize
        self.dtype = dtype
        self.device = device
        self.bits = torch.int64 if dtype is torch.float64 else torch.int32
        self._buffers: dict[str, Tensor] = {}

    def _buffer(self, name: str, rows: int) -> Tensor:
        if name not in self._buffers:
            self._buffers[name] = torch.empty(self.rows, WIDTH, dtype=self.dtype, device=self.device)
        return self._buffers[name][:rows]

    def _widened(self, name: str, rows: Tensor) -> Tensor:
        return rows if rows.dtype is self.dtype else self._buffer(name, len(rows)).copy_(rows)

    def __call__(self, new: Tensor, old: Tensor, thresholds: Tensor) -> Tensor:
        out = torch.empty(PARTIALS + len(thresholds), len(new), dtype=self.dtype, device=self.device)
        for start in range(0, len(new), self.rows):
            chunk = slice(start, start + self.rows)
            wide = self._widened("new", new[chunk]), self._widened("old", old[chunk])
            self._chunk(*wide, thresholds, out[:, chunk])
        out[2].square_()  # norms so far, which read the rows once instead of twice
        out[4].square_()
        return out

    def _chunk(self, new: Tensor, old: Tensor, thresholds: Tensor, out: Tensor) -> None:
        size, work = self._buffer("size", len(new)), self._buffer("work", len(new))
        torch.sub(new, old, out=size)
        torch.sum(size, 1, out=out[0])
        torch.linalg.vector_norm(size, dim=1, out=out[2])
        torch.sum(size.abs_(), 1, out=out[1])
        torch.amax(size, 1, out=out[LARGEST])
        torch.linalg.vector_norm(old, dim=1, out=out[4])
        torch.sum(torch.mul(new, math.inf, out=work).mul_(old).lt_(0), 1, out=out[5])
        torch.sum(torch.ne(new.view(self.bits), old.view(self.bits), out=work), 1, out=out[6])
        for index, threshold in enumerate(thresholds.unbind()):
            torch.sum(torch.le(size, threshold, out=work), 1, out=out[PARTIALS + index])
