"""Statistics of the change between two copies of a model's tensors, in one pass."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from learnscope.native import Numbers
from learnscope.tensor.context import arithmetic_dtype, common_dtype, plain, plain_arithmetic
from learnscope.tensor.kernels import COMPILE_FROM, PARTIALS, Form, compiler_available, wants_compiler
from learnscope.tensor.rows import Group, batches, pieces
from learnscope.tensor.updates.fold import Fold, rounded_down
from learnscope.tensor.updates.host import COLUMNS, host_changes

__all__ = ["COMPILE_FROM", "DeltaTable", "Form", "compared_and_renewed", "compiler_available", "delta_statistics"]

LOST_DIGITS = 0.9
"""Share of ΣΔ² that the mean may explain. Above it, ΣΔ² − (ΣΔ)²/n loses more than one digit of the float32 sums.
Adam's first step, for example, moves every entry of a bias by the learning rate, with hardly any spread."""


@dataclass(frozen=True, kw_only=True)
class DeltaTable:
    """Statistics of Δ = new − old, one entry per pair of tensors, float64 on the CPU.

    Δ is computed in float32 (in float64 where one of the two is float64). A NaN in Δ makes `total`, `l1`,
    `sum_squares` and `largest` NaN. Counts are exact.
    """

    entries: Tensor
    """n, the number of entries"""
    total: Tensor
    """ΣΔ"""
    l1: Tensor
    """Σ|Δ|"""
    sum_squares: Tensor
    """ΣΔ²"""
    centred_squares: Tensor
    """Σ(Δ − mean Δ)², accurate even where all entries moved by nearly the same amount"""
    largest: Tensor
    """max|Δ|, 0 for an empty tensor"""
    old_sum_squares: Tensor
    """Σ old²"""
    sign_flips: Tensor
    """entries with new < 0 < old or old < 0 < new"""
    bits_changed: Tensor
    """entries whose stored bits differ: 0.0 and -0.0 differ, a NaN does not differ from the same NaN. A narrower
    `new` is widened first; NaN where `old` is narrower or of another kind, as a comparison means nothing then"""
    nan: Tensor
    """entries with Δ = NaN"""
    inf: Tensor
    """entries with Δ = ±∞"""
    within: Tensor
    """[tensors, thresholds]: entries with |Δ| ≤ t; a NaN never counts"""


def delta_statistics(
    new: Sequence[Tensor], old: Sequence[Tensor], thresholds: Sequence[float] = (), *, form: Form = "auto"
) -> DeltaTable:
    """Compare tensors pairwise; `new` and `old` are only read, and no random numbers are drawn.

    `form`: `"compiled"` uses one fused kernel per pair of dtypes (seconds of compilation, once), `"chunked"` plain
    operations on pieces that fit the cache. `"auto"` reads float32 in the memory of the host by a kernel in C where
    there is one, and otherwise compiles from `COMPILE_FROM` entries on if a compiler works: this never depends on
    measured time, so a repeated run gives the same numbers.

    >>> table = delta_statistics([torch.tensor([1.0, -2.0])], [torch.tensor([1.0, 2.0])], [0.5])
    >>> table.l1.tolist(), table.sign_flips.tolist(), table.within.tolist()
    ([4.0], [1.0], [[1.0]])
    """
    _check(new, old)
    if form == "auto" and (on_host := host_changes(new, old, _cuts(thresholds))) is not None:
        return _from_host(on_host, new)
    device = new[0].device if new else torch.device("cpu")
    with plain_arithmetic(device):
        pairs = [(plain(a), plain(b)) for a, b in zip(new, old, strict=True)]
        compiled = wants_compiler(sum(tensor.numel() for tensor, _ in pairs), form)
        fold = Fold(pairs, thresholds)
        for batch in batches(pairs):
            fold.add(batch, compiled)
        fold.join()
        return _table(fold, pairs)


def compared_and_renewed(
    new: Sequence[Tensor], old: Sequence[Tensor], thresholds: Sequence[float] = ()
) -> DeltaTable | None:
    """`delta_statistics`, in whose pass the old tensors become the new ones.

    None, and the old ones are what they were, where there is no kernel for them.
    """
    _check(new, old)
    on_host = host_changes(new, old, _cuts(thresholds), renew=True)
    return None if on_host is None else _from_host(on_host, new)


def _cuts(thresholds: Sequence[float]) -> list[float]:
    """As float32 numbers that give the same answers; nothing is within NaN, nor within less than nothing."""
    return [-math.inf if math.isnan(t) else rounded_down(t) for t in thresholds]


def _from_host(numbers: Numbers, new: Sequence[Tensor]) -> DeltaTable:
    table = torch.from_numpy(numbers)
    columns = dict(zip(COLUMNS, table.unbind(), strict=False))
    entries = torch.from_numpy(np.array([tensor.numel() for tensor in new], np.float64))
    return DeltaTable(entries=entries, within=table[len(COLUMNS) :].T, **columns)


def _check(new: Sequence[Tensor], old: Sequence[Tensor]) -> None:
    if len(new) != len(old):
        raise ValueError(f"{len(new)} new tensors for {len(old)} old ones")
    for index, (a, b) in enumerate(zip(new, old, strict=True)):
        for tensor in (a, b):
            if not tensor.is_floating_point() or tensor.layout is not torch.strided:
                raise TypeError(f"tensor {index} is {tensor.dtype}, {tensor.layout}: a change needs dense floats")
        if a.shape != b.shape:
            raise ValueError(f"tensor {index}: new has shape {tuple(a.shape)}, old has {tuple(b.shape)}")


def _table(fold: Fold, pairs: Sequence[Group]) -> DeltaTable:
    total, l1, sum_squares, largest, old_sum_squares, sign_flips, bits = fold.columns[:PARTIALS]
    entries = torch.tensor([new.numel() for new, _ in pairs], dtype=torch.float64, device="cpu")
    narrower = [common_dtype(new.dtype, old.dtype) != old.dtype for new, old in pairs]
    if any(narrower):
        bits = bits.masked_fill(torch.tensor(narrower, dtype=torch.bool, device="cpu"), torch.nan)
    return DeltaTable(
        entries=entries,
        total=total,
        l1=l1,
        sum_squares=sum_squares,
        centred_squares=_centred_squares(pairs, entries, total, sum_squares),
        largest=largest,
        old_sum_squares=old_sum_squares,
        sign_flips=sign_flips,
        bits_changed=bits,
        nan=fold.columns[-2],
        inf=fold.columns[-1],
        within=fold.within(entries),
    )


def _centred_squares(pairs: Sequence[Group], entries: Tensor, total: Tensor, sum_squares: Tensor) -> Tensor:
    """Σ(Δ − mean)² of each pair; computed again in float64 only where the difference of sums would be noise."""
    explained = total.square() / entries
    centred = (sum_squares - explained).clamp_(min=0)
    lost = (explained.numpy() > LOST_DIGITS * sum_squares.numpy()) & (entries.numpy() > 1)
    for index in np.flatnonzero(lost).tolist():
        near = float(total[index] / entries[index])  # the mean that the float32 pass gave
        first = second = 0.0
        for new, old in pieces(pairs[index]):
            kind = arithmetic_dtype(new, old)
            change = (new.to(kind) - old.to(new.device, kind)).double() - near
            first += float(change.sum())
            second += float(change.square().sum())
        centred[index] = max(second - first * first / pairs[index][0].numel(), 0.0)
    return centred
