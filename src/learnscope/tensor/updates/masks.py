"""Which entries of an update are kept: those that moved most, or as many at random.

Every tensor is cut into blocks. Whether a rule selects an entry depends only on its |new − old| and its position,
neither of which changes when new and old are exchanged there: applied again, the rule selects the same entries, and no
mask has to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 1 << 15
"""Entries in a block, a power of two. The random order of a block takes 128 KiB, which stays in a core's own cache."""


@dataclass(frozen=True)
class Rule:
    """Reverts the entries with |Δ| ≤ `threshold` whose rank in their block's random order is at least its cut.

    By magnitude: without cuts. At random: an infinite threshold. A NaN is never reverted.
    """

    threshold: float
    cuts: NDArray[np.int32] | None = None
    """One per block."""


KEEP_ALL = Rule(-1.0)
"""Reverts nothing."""


class Order:
    """A random order of the entries of every block.

    All blocks share one permutation; each adds its own offset to the ranks, modulo their number. Whatever the
    permutation, an entry's rank is then uniform, and the ranks of entries of different blocks are independent. Every
    seed has its own permutation: with a fixed one and few candidates in a block, a candidate after a wide gap in the
    ranks would come first more often than others.
    """

    def __init__(self, lengths: Sequence[int], seed: int) -> None:
        self.block = BLOCK
        self.first = list(accumulate((-(-length // BLOCK) for length in lengths), initial=0))
        """The first block of every tensor, then the number of all blocks."""
        self.lengths = [min(BLOCK, length - start) for length in lengths for start in range(0, length, BLOCK)]
        draw = np.random.default_rng(seed)
        self.offsets = draw.integers(BLOCK, size=len(self.lengths), dtype=np.int32)
        self._phase = draw.random()
        self._ranks = draw.permutation(BLOCK).astype(np.int32)
        self._by_rank = np.argsort(self._ranks)
        self._on_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The shared permutation, and a column with every block's offset, in float32."""
        if device not in self._on_device:
            ranks, offsets = torch.from_numpy(self._ranks), torch.from_numpy(self.offsets).unsqueeze(1)
            self._on_device[device] = ranks.to(device, torch.float32), offsets.to(device, torch.float32)
        return self._on_device[device]

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
        total = max(1, total)
        phase, end = int(self._phase * total), 0
        for block, mask in enumerate(candidates):
            start, end = end, end + int(np.count_nonzero(mask))
            kept = [(count * end + phase) // total - (count * start + phase) // total for count in counts]
            cuts[:, block] = self._cuts(block, mask, end - start, kept)
        return [Rule(np.inf, chosen) for chosen in cuts]

    def _cuts(self, block: int, mask: NDArray[np.bool_], present: int, kept: Sequence[int]) -> list[int]:
        """The ranks below which exactly these numbers of a block's candidates lie."""
        if present == self.block or all(count in (0, present) for count in kept):
            return [self.block if count == present else count for count in kept]
        padded = np.zeros(self.block, dtype=np.bool_)
        padded[: len(mask)] = mask
        ranks = np.flatnonzero(np.roll(padded[self._by_rank], self.offsets[block]))
        return [int(ranks[count - 1]) + 1 if count else 0 for count in kept]
