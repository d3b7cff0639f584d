"""Keeping part of an update: the entries that moved most, or as many at random; the others are exchanged in place.

Every tensor is cut into blocks. Whether a rule selects an entry depends only on its |new − old| and its position,
neither of which changes when new and old are exchanged there: applied again, the rule selects the same entries, and no
mask has to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype
from learnscope.tensor.kernels import COMPILED_DTYPES, REHEARSAL, run_compiled
from learnscope.tensor.updates.fold import rounded_down

BLOCK = 1 << 15
"""Entries in a block, a power of two. The random order of a block takes 128 KiB, which stays in a core's own cache."""

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


@dataclass(frozen=True)
class Rule:
    """Reverts the entries with |Δ| ≤ `threshold` whose rank in their block's random order is at least its cut.

    By magnitude: no cuts. At random: an infinite threshold. A NaN is never reverted.
    """

    threshold: float
    cuts: NDArray[np.int32] | None = None
    """One per block."""

    def bounds(self, blocks: slice, device: torch.device) -> Bounds:
        """The rule for some blocks, on a device."""
        if self.cuts is None:
            return Bounds(self.threshold)
        return Bounds(self.threshold, torch.from_numpy(self.cuts[blocks]).unsqueeze(1).to(device, torch.float32))


KEEP_ALL = Rule(-1.0)
"""Reverts nothing."""


class Order:
    """A random order of the entries of every block.

    All blocks share one permutation; each adds its own offset to the ranks, modulo their number. An entry's rank is
    then uniform, and ranks of entries of different blocks are independent. Every seed has its own permutation: with a
    fixed one, a candidate after a wide gap in the ranks would come first more often than others.
    """

    def __init__(self, lengths: Sequence[int], seed: int) -> None:
        self.block = BLOCK
        self.first = list(accumulate((-(-length // BLOCK) for length in lengths), initial=0))
        """The first block of every tensor, then the number of all blocks."""
        self.lengths = [min(BLOCK, length - start) for length in lengths for start in range(0, length, BLOCK)]
        draw = np.random.default_rng(seed)
        self.offsets = draw.integers(BLOCK, size=len(self.lengths), dtype=np.int32)
        self._phase = draw.random()
        self.shared_ranks = draw.permutation(BLOCK).astype(np.int32)
        """Before they are turned by a block's offset."""
        self._on_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def ranks(self, blocks: slice, device: torch.device) -> Ranks:
        """The ranks in some blocks, on a device."""
        if device not in self._on_device:
            ranks, offsets = torch.from_numpy(self.shared_ranks), torch.from_numpy(self.offsets).unsqueeze(1)
            self._on_device[device] = ranks.to(device, torch.float32), offsets.to(device, torch.float32)
        shared, offsets = self._on_device[device]
        return Ranks(shared, offsets[blocks])

    def keep(self, counts: Sequence[int]) -> list[Rule]:
        """Rules that keep exactly `counts[i]` of all entries, every entry with the same probability."""
        everything = np.ones(self.block, dtype=np.bool_)
        return self.keep_of((everything[:length] for length in self.lengths), counts, sum(self.lengths))

    def keep_of(self, candidates: Iterable[NDArray[np.bool_]], counts: Sequence[int], total: int) -> list[Rule]:
        """Rules that keep exactly `counts[i]` of the `total` candidates, given as one mask per block.

        With E_b candidates up to the end of block b, the block keeps ⌊K·E_b/E + u⌋ − ⌊K·E_{b−1}/E + u⌋ of K, for one
        random u in [0, 1): every candidate is kept with probability K/E, and exactly K are (systematic sampling).
        """
        cuts = np.zeros((len(counts), len(self.lengths)), dtype=np.int32)
        end = 0
        for block, mask in enumerate(candidates):
            start, end = end, end + int(np.count_nonzero(mask))
            cuts[:, block] = self._cuts(block, mask, end - start, self._share(start, end, counts, total))
        return [Rule(np.inf, chosen) for chosen in cuts]

    def shares(self, present: Sequence[int], counts: Sequence[int], total: int) -> NDArray[np.int64]:
        """How many of each block's candidates are kept, `[counts, blocks]`; `present` are how many there are."""
        ends = list(accumulate(present, initial=0))
        kept = [self._share(start, end, counts, total) for start, end in pairwise(ends)]
        return np.array(kept, np.int64).reshape(len(present), len(counts)).T.copy()

    def _share(self, start: int, end: int, counts: Sequence[int], total: int) -> list[int]:
        """How many of the candidates from `start` to `end` are kept."""
        total = max(1, total)
        phase = int(self._phase * total)
        return [(count * end + phase) // total - (count * start + phase) // total for count in counts]

    def _cuts(self, block: int, mask: NDArray[np.bool_], present: int, kept: Sequence[int]) -> list[int]:
        """The ranks below which exactly these numbers of a block's candidates lie."""
        if present == self.block or all(count in (0, present) for count in kept):
            return [self.block if count == present else count for count in kept]
        if 2 * present <= len(mask):
            ranks = np.sort(self._ranks_at(block, np.flatnonzero(mask)))
            return [int(ranks[count - 1]) + 1 if count else 0 for count in kept]
        # most entries are candidates: the j-th of them is as far behind rank j as there are others before it
        others = np.flatnonzero(~mask)
        if len(mask) < self.block:
            others = np.concatenate([others, np.arange(len(mask), self.block)])
        before = np.sort(self._ranks_at(block, others)) - np.arange(len(others))
        last = np.array(kept) - 1
        cuts = last + np.searchsorted(before, last, side="right") + 1
        return [int(cut) if count else 0 for cut, count in zip(cuts, kept, strict=True)]

    def _ranks_at(self, block: int, entries: NDArray[np.int64]) -> NDArray[np.int32]:
        """The ranks of some entries in the random order of their block."""
        ranks: NDArray[np.int32] = (self.shared_ranks[entries] + self.offsets[block]) % self.block
        return ranks


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
    """By exclusive or on integer views. Memory is allocated before anything is written, so no error comes halfway."""
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
