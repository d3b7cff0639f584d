"""Which entries of an update are kept: those that moved most, or as many at random.

All entries of a model are numbered through and cut into blocks. What a rule says of an entry depends only on its
|new − old| and on its number, neither of which changes when new and old are exchanged there: the same rule, asked
again, names the same entries, and no mask has to be remembered.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 1 << 20
"""Entries in a block. A random order of one takes 8 MiB, and is all that has to be held."""


@dataclass(frozen=True)
class Rule:
    """Reverts the entries with |Δ| ≤ `threshold` whose rank in their block's random order is at least its cut.

    By magnitude: without cuts. At random: an infinite threshold. A NaN is within nothing and is never reverted.
    """

    threshold: float
    cuts: Sequence[int] | None = None

    def cut(self, block: int) -> int:
        return 0 if self.cuts is None else self.cuts[block]


KEEP_ALL = Rule(-1.0)
"""Reverts nothing."""


@functools.lru_cache(maxsize=1)
def _permutation(length: int) -> Tensor:
    """A random order, twice in a row, so that a turned one is a slice. Kept, as drawing one takes 50 ms."""
    ranks = np.random.default_rng(0).permutation(length).astype(np.int32)
    return torch.from_numpy(np.concatenate([ranks, ranks]))


class Order:
    """A random order of the entries of every block: one permutation, turned by an offset for each block."""

    def __init__(self, entries: int, seed: int) -> None:
        self.entries, self.blocks = entries, -(-entries // BLOCK)
        draw = np.random.default_rng(seed)
        self._offsets = draw.integers(BLOCK, size=self.blocks)
        self._phase = draw.random()
        self._inverse: NDArray[np.int64] | None = None
        self._ranks = {torch.device("cpu"): _permutation(BLOCK)}

    def ranks(self, block: int, start: int, length: int, device: torch.device) -> Tensor:
        """The ranks of `length` entries from `start` on."""
        if device not in self._ranks:
            self._ranks[device] = self._ranks[torch.device("cpu")].to(device)
        begin = (int(self._offsets[block]) + start) % BLOCK
        return self._ranks[device][begin : begin + length]

    def keep(self, counts: Sequence[int]) -> list[Rule]:
        """Rules that keep exactly `counts[i]` of all entries, each being equally likely."""
        whole = np.ones(BLOCK, dtype=np.bool_)
        lengths = (min(BLOCK, self.entries - block * BLOCK) for block in range(self.blocks))
        return self.keep_of((whole[:length] for length in lengths), counts, self.entries)

    def keep_of(
        self, candidates: Iterable[NDArray[np.bool_]], counts: Sequence[int], total: int
    ) -> list[Rule]:  # fmt: skip
        """Rules that keep exactly `counts[i]` of the `total` candidates, given as one mask a block.

        With E_b candidates up to the end of block b, the block keeps ⌊K·E_b/E + u⌋ − ⌊K·E_{b−1}/E + u⌋ of K, for one
        random u in [0, 1): every candidate is kept with probability K/E, and exactly K are (systematic sampling).
        """
        cuts: list[list[int]] = [[] for _ in counts]
        total = max(1, total)
        phase, seen = int(self._phase * total), 0
        for block, mask in enumerate(candidates):
            before, seen = seen, seen + int(np.count_nonzero(mask))
            for chosen, count in zip(cuts, counts, strict=True):
                wanted = (count * seen + phase) // total - (count * before + phase) // total
                chosen.append(self._cut(block, mask, seen - before, wanted))
        return [Rule(np.inf, chosen) for chosen in cuts]

    def _cut(self, block: int, mask: NDArray[np.bool_], present: int, wanted: int) -> int:
        """The rank below which exactly `wanted` of the candidates of a block lie."""
        if wanted <= 0:
            return 0
        if wanted >= present:
            return BLOCK
        if present == BLOCK:
            return wanted
        ranks = self.ranks(block, 0, len(mask), torch.device("cpu")).numpy()
        guess = min(BLOCK - 1, round(wanted / present * BLOCK))
        below = int(np.count_nonzero(mask & (ranks < guess)))
        # walk through the order from there: the number of candidates below the guess is off by a few hundred
        while below != wanted:
            step = 4 * abs(wanted - below) * BLOCK // present + 64
            if below < wanted:
                window = np.arange(guess, min(BLOCK, guess + step))
                passed = below + np.cumsum(self._present(block, mask, window))
                reached = int(np.searchsorted(passed, wanted))
                if reached < len(window):
                    return int(window[reached]) + 1
                below, guess = int(passed[-1]), int(window[-1]) + 1
            else:
                window = np.arange(max(0, guess - step), guess)[::-1]
                left = below - np.cumsum(self._present(block, mask, window))
                reached = int(np.searchsorted(-left, -wanted))
                if reached < len(window):
                    return int(window[reached])
                below, guess = int(left[-1]), int(window[-1])
        return guess

    def _present(self, block: int, mask: NDArray[np.bool_], ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the entries with these ranks are candidates."""
        if self._inverse is None:
            table = self._ranks[torch.device("cpu")][:BLOCK].numpy()
            self._inverse = np.empty(BLOCK, dtype=np.int64)
            self._inverse[table] = np.arange(BLOCK)
        places = (self._inverse[ranks] - int(self._offsets[block])) % BLOCK
        inside = places < len(mask)
        found: NDArray[np.bool_] = inside & mask[np.minimum(places, len(mask) - 1)]
        return found
