"""Which ids are tracked, and from an id to its row in the arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from learnscope.options import is_whole

Ids = NDArray[np.int64]
Sample = Literal["first", "even", "random"]
SAMPLES: tuple[Sample, ...] = ("first", "even", "random")
DENSE = 2**24
"""Ids below this are looked up in an array with 4 bytes per id; larger or negative ids by their hash."""
CHUNK = 2**16
"""Ids hashed together."""


def chosen_ids(track: int | None, sample: Sample, examples: int | None, seed: int) -> Ids | None:
    """The ids to track, in ascending order; None if that is decided as they come."""
    if sample not in SAMPLES:
        raise ValueError(f"sample={sample!r}: one of {', '.join(SAMPLES)}")
    if track is not None and not is_whole(track, 1):
        raise ValueError(f"track={track!r}: how many examples to follow, a whole number from 1, or None for all")
    if sample == "first":
        return None
    if track is None or examples is None:
        raise ValueError(
            f"sample={sample!r} chooses track= of the ids 0..examples−1: give track= and examples=, the data set's size"
        )
    for name, value, least in (("examples", examples, 1), ("seed", seed, 0)):
        if not is_whole(value, least):
            raise ValueError(f"{name}={value!r}: a whole number from {least}")
    count = min(track, examples)
    if sample == "even":
        return np.arange(count, dtype=np.int64) * examples // count
    drawn = np.random.default_rng(seed).choice(examples, size=count, replace=False)
    return np.sort(drawn).astype(np.int64)


def among(ids: Ids, chosen: Ids) -> NDArray[np.bool_]:
    """Which of the ids are among the chosen ones, which are sorted."""
    at = np.minimum(np.searchsorted(chosen, ids), len(chosen) - 1)
    is_chosen: NDArray[np.bool_] = chosen[at] == ids
    return is_chosen


class HashedIds:
    """Rows of ids that may be any int64: slots with row + 1, 0 for none, at most half of them in use.

    The ids themselves are where `ids_at` finds them, by row.
    """

    def __init__(self, ids_at: Callable[[NDArray[Any]], Ids]) -> None:
        self._ids_at = ids_at
        self.slots = np.zeros(2048, dtype=np.int32)
        self._size = 0

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes

    def find(self, ids: Ids) -> NDArray[np.int64]:
        rows = np.full(len(ids), -1, dtype=np.int64)
        left, at = np.arange(len(ids)), self._first_slot(ids)
        while len(left):
            found = self.slots[at] - 1
            same = (self._ids_at(found) == ids[left]) & (found >= 0)
            rows[left[same]] = found[same]
            further = (found >= 0) & ~same  # another id has the slot: the next one is looked at
            left, at = left[further], (at[further] + 1) & (len(self.slots) - 1)
        return rows

    def add(self, ids: Ids) -> None:
        """Give distinct ids, none of which there was, the next rows."""
        total = self._size + len(ids)
        if 2 * total > len(self.slots):
            self.slots = np.zeros(1 << (2 * total - 1).bit_length(), dtype=np.int32)
            for start in range(0, self._size, CHUNK):
                rows = np.arange(start, min(start + CHUNK, self._size), dtype=np.int32)
                self._put(self._ids_at(rows), rows)
        self._put(ids, np.arange(self._size, total, dtype=np.int32))
        self._size = total

    def _put(self, ids: Ids, rows: NDArray[np.int32]) -> None:
        at = self._first_slot(ids)
        while len(rows):
            free = self.slots[at] == 0
            self.slots[at[free]] = rows[free] + 1
            lost = self.slots[at] != rows + 1  # to another id, of the batch or from before
            rows, at = rows[lost], (at[lost] + 1) & (len(self.slots) - 1)

    def _first_slot(self, ids: Ids) -> NDArray[np.int64]:
        bits = len(self.slots).bit_length() - 1
        mixed = ids.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return ((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(64 - bits)).view(
            np.int64
        )


class IdIndex:
    """Gives every new id the next row. Ids may be any int64; 0..N−1 take the fast path."""

    def __init__(self, ids_at: Callable[[NDArray[Any]], Ids]) -> None:
        self.size = 0
        self._table: NDArray[np.int32] | None = np.zeros(0, dtype=np.int32)  # row + 1, 0 for unknown
        self._hashed = HashedIds(ids_at)
        self._ids_at = ids_at

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes

    @property
    def is_hashed(self) -> bool:
        """Whether rows are found by the hash of an id, or by the id itself."""
        return self._table is None

    @property
    def slots(self) -> NDArray[np.int32]:
        """Where rows are found: row + 1, 0 for none."""
        return self._hashed.slots if self._table is None else self._table

    def guess(self, ids: Ids) -> NDArray[Any]:
        """Rows of ids, right for all that are known, any or −1 for others."""
        if self._table is None:
            return self._hashed.find(ids)
        if not self.size:
            return np.full(len(ids), -1)
        return self._table.take(ids, mode="clip") - 1

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """Rows, −1 for an unknown id."""
        if self._table is None:
            return self._hashed.find(ids)
        in_table = (ids >= 0) & (ids < len(self._table))
        if in_table.all():
            return self._table[ids].astype(np.int64) - 1
        rows = np.full(len(ids), -1, dtype=np.int64)
        rows[in_table] = self._table[ids[in_table]].astype(np.int64) - 1
        return rows

    def add(self, ids: Ids) -> None:
        """Give new, distinct ids the next rows, in their order; `ids_at` knows them already."""
        if not len(ids):
            return
        if self._table is not None and self._fits(ids, self._table):
            self._table[ids] = np.arange(self.size + 1, self.size + 1 + len(ids), dtype=np.int32)
        elif self._table is not None:
            self._table = None
            self._hashed.add(self._ids_at(np.arange(self.size)))
        if self._table is None:
            self._hashed.add(ids)
        self.size += len(ids)

    def _fits(self, ids: Ids, table: NDArray[np.int32]) -> bool:
        """Whether the table can hold these ids; makes room for them."""
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= max(DENSE, 4 * (self.size + len(ids))):
            return False
        if highest >= len(table):
            self._table = np.zeros(max(highest + 1, len(table) + len(table) // 4), dtype=np.int32)
            self._table[: len(table)] = table
        return True
