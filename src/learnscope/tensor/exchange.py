"""Exchanging entries of two vectors in place, where one rule of reverting differs from another."""

from __future__ import annotations

import torch
from torch import Tensor

from .context import arithmetic_dtype
from .fold import rounded_down
from .kernels import COMPILED_DTYPES, run_compiled
from .masks import Rule

CHUNK = 1 << 18
"""Entries exchanged at a time with plain operations: 1 MiB of float32, which stays in the cache."""

COMPILED_FROM = 1 << 16
"""Shorter vectors are not worth the call of a compiled kernel."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def exchange_entries(
    new: Tensor, old: Tensor, ranks: Tensor, now: Rule, then: Rule, block: int, *, compiled: bool
) -> None:
    """Go from the entries of a block that `now` reverts to those that `then` reverts.

    `old` may have a wider dtype than `new`; entries that are not exchanged are not written in it, not even rounded.
    Doing it again with the rules in the other order restores both bit for bit.
    """
    if compiled and new.numel() >= COMPILED_FROM and {new.dtype, old.dtype} <= COMPILED_DTYPES:
        limits = [rounded_down(now.threshold), rounded_down(then.threshold)]
        thresholds = torch.tensor(limits, dtype=torch.float32, device=new.device)
        if now.cuts is None and then.cuts is None:
            done = run_compiled(_magnitude_kernel, (new, old), thresholds)
        else:
            cuts = torch.tensor([now.cut(block), then.cut(block)], dtype=torch.int32, device=new.device)
            done = run_compiled(_exchange_kernel, (new, old, ranks), thresholds, cuts)
        if done is not None:
            return
    for start in range(0, new.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        _exchange_chunk(new[part], old[part], ranks[part], now, then, block)


def _exchange_kernel(new: Tensor, old: Tensor, ranks: Tensor, thresholds: Tensor, cuts: Tensor) -> tuple[Tensor, ...]:
    size = (new.float() - old.float()).abs()
    before = (size <= thresholds[0]) & (ranks >= cuts[0])
    after = (size <= thresholds[1]) & (ranks >= cuts[1])
    _exchange_where(before != after, new, old)
    return ()


def _magnitude_kernel(new: Tensor, old: Tensor, thresholds: Tensor) -> tuple[Tensor, ...]:
    size = (new.float() - old.float()).abs()
    _exchange_where((size <= thresholds[0]) != (size <= thresholds[1]), new, old)
    return ()


def _exchange_where(chosen: Tensor, new: Tensor, old: Tensor) -> None:
    # as integers: half precision would pass through float32, in which a NaN does not keep its bits
    mine, other = new.view(_INTEGERS[new.element_size()]), old.view(_INTEGERS[old.element_size()])
    weight = torch.where(chosen, old.to(new.dtype).view(mine.dtype), mine)
    copy = torch.where(chosen, new.to(old.dtype).view(other.dtype), other)
    mine.copy_(weight)
    other.copy_(copy)


def _exchange_chunk(new: Tensor, old: Tensor, ranks: Tensor, now: Rule, then: Rule, block: int) -> None:
    """The same on integer views: exclusive or, so that what is exchanged twice is as it was."""
    wide = arithmetic_dtype(new, old)
    kind = _INTEGERS[new.element_size()]
    size = (new.to(wide) - old.to(wide)).abs_()
    chosen = _reverted(size, ranks, now, block, kind).bitwise_xor_(_reverted(size, ranks, then, block, kind)).neg_()
    same = old.dtype == new.dtype
    copy = old if same else old.to(new.dtype)
    mine, other = new.view(kind), copy.view(kind)
    difference = torch.bitwise_xor(mine, other).bitwise_and_(chosen)
    mine.bitwise_xor_(difference)
    other.bitwise_xor_(difference)
    if not same:
        old.copy_(torch.where(chosen.bool(), copy.to(old.dtype), old))


def _reverted(size: Tensor, ranks: Tensor, rule: Rule, block: int, kind: torch.dtype) -> Tensor:
    """1 where the rule reverts, 0 elsewhere, as integers of the weights' width."""
    out = torch.empty(size.shape, dtype=kind, device=size.device)
    threshold = rule.threshold if size.dtype is torch.float64 else rounded_down(rule.threshold)
    torch.le(size, threshold, out=out)
    if rule.cuts is not None:
        out.bitwise_and_(ranks >= rule.cut(block))
    return out
