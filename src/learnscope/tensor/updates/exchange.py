"""Exchanging entries of two vectors in place, where two rules for reverting differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype
from learnscope.tensor.kernels import COMPILED_DTYPES, REHEARSAL, run_compiled
from learnscope.tensor.updates.fold import rounded_down

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Ranks:
    """Ranks of the entries of some blocks in their random orders: (`shared` + `offsets`) modulo the block length.

    In float32, exact up to 2²⁴: a compiled kernel that compares both integers and floats takes twice as long.
    """

    shared: Tensor
    offsets: Tensor
    """A column with one offset per block."""

    def at_least(self, cuts: Tensor, entries: int) -> Tensor:
        """Which of the first `entries` entries have a rank of at least their block's cut."""
        shared = self.shared[:entries]  # most tensors of a model are shorter than a block
        return (_turned(shared, self.offsets, len(self.shared)) >= cuts).view(-1)[:entries]


def _turned(shared: Tensor, offsets: Tensor, length: int) -> Tensor:
    ranks = shared + offsets
    return torch.where(ranks >= length, ranks - length, ranks)


@dataclass(frozen=True)
class Bounds:
    """A rule for some blocks: entries with |Δ| ≤ `threshold` and ranks from `cuts` on are reverted."""

    threshold: float
    cuts: Tensor | None = None
    """A column with one cut per block."""


def exchange_entries(new: Tensor, old: Tensor, ranks: Ranks, now: Bounds, then: Bounds, *, compiled: bool) -> None:
    """Exchange the entries of some blocks that one of the rules `now` and `then` reverts and the other does not.

    `old` may have a wider dtype than `new`; its other entries are not even rounded. Doing it again with the rules
    swapped restores both bit for bit.
    """
    if not (compiled and _exchange_compiled(new, old, ranks, now, then)):
        _exchange_plainly(new, old, ranks, now, then)


def _exchange_compiled(new: Tensor, old: Tensor, ranks: Ranks, now: Bounds, then: Bounds) -> bool:
    """Whether a compiled kernel did it: only for whole blocks, unless ranks do not matter."""
    if not {new.dtype, old.dtype} <= COMPILED_DTYPES:
        return False
    limits = [rounded_down(now.threshold), rounded_down(then.threshold)]
    thresholds = torch.tensor(limits, dtype=torch.float32, device=new.device)
    if now.cuts is None and then.cuts is None:
        return run_compiled(_magnitude_kernel, (new, old), thresholds) is not None
    blocks, length = len(ranks.offsets), len(ranks.shared)
    if blocks < 2 or new.numel() != blocks * length:  # the compiler would make a separate kernel for one block
        return False
    none = torch.zeros_like(ranks.offsets)
    cuts = [none if bounds.cuts is None else bounds.cuts for bounds in (now, then)]
    # lengths that differ from each other, or the compiler would assume that they are always equal
    shapes = [(REHEARSAL // length + 7, length)] * 2 + [(length,)] + [(REHEARSAL // length + 7, 1)] * 3
    rows = new.view(blocks, length), old.view(blocks, length)
    done = run_compiled(_exchange_kernel, (*rows, ranks.shared, ranks.offsets, *cuts), thresholds, rehearsal=shapes)
    return done is not None


def _exchange_kernel(
    new: Tensor, old: Tensor, shared: Tensor, offsets: Tensor, now: Tensor, then: Tensor, thresholds: Tensor
) -> tuple[Tensor, ...]:
    size = (new.float() - old.float()).abs()
    ranks = _turned(shared, offsets, shared.shape[0])
    before = (size <= thresholds[0]) & (ranks >= now)
    after = (size <= thresholds[1]) & (ranks >= then)
    _exchange_where(before != after, new, old)
    return ()


def _magnitude_kernel(new: Tensor, old: Tensor, thresholds: Tensor) -> tuple[Tensor, ...]:
    size = (new.float() - old.float()).abs()
    _exchange_where((size <= thresholds[0]) != (size <= thresholds[1]), new, old)
    return ()


def _exchange_where(chosen: Tensor, new: Tensor, old: Tensor) -> None:
    new_bits, old_bits = new, old
    if {new.dtype, old.dtype} != {torch.float32}:
        # as integers: half precision would pass through float32, in which a NaN does not keep its bits
        new_bits, old_bits = new.view(_INTEGERS[new.element_size()]), old.view(_INTEGERS[old.element_size()])
    weight = torch.where(chosen, old.to(new.dtype).view(new_bits.dtype), new_bits)
    copy = torch.where(chosen, new.to(old.dtype).view(old_bits.dtype), old_bits)
    new_bits.copy_(weight)
    old_bits.copy_(copy)


def _exchange_plainly(new: Tensor, old: Tensor, ranks: Ranks, now: Bounds, then: Bounds) -> None:
    """The same on integer views, by exclusive or: exchanging twice restores the bits.

    All memory is allocated before the first entry is written: an error leaves either all or nothing done.
    """
    wide = arithmetic_dtype(new, old)
    kind = _INTEGERS[new.element_size()]
    size = (new.to(wide) - old.to(wide)).abs_()
    chosen = _reverted(size, ranks, now, kind).bitwise_xor_(_reverted(size, ranks, then, kind)).neg_()
    new_bits, old_bits = new.view(kind), old.to(new.dtype).view(kind)
    difference = torch.bitwise_xor(new_bits, old_bits).bitwise_and_(chosen)
    if old.dtype == new.dtype:
        new_bits.bitwise_xor_(difference)
        old_bits.bitwise_xor_(difference)
    else:
        replaced = torch.where(chosen.bool(), new.to(old.dtype), old)
        new_bits.bitwise_xor_(difference)
        old.copy_(replaced)


def _reverted(size: Tensor, ranks: Ranks, bounds: Bounds, kind: torch.dtype) -> Tensor:
    """1 where the rule reverts, 0 elsewhere, as integers as wide as the weights."""
    out = torch.empty(size.shape, dtype=kind, device=size.device)
    threshold = bounds.threshold if size.dtype is torch.float64 else rounded_down(bounds.threshold)
    torch.le(size, threshold, out=out)
    if bounds.cuts is not None:
        out.bitwise_and_(ranks.at_least(bounds.cuts, len(size)))
    return out
