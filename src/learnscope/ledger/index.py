"""Which ids are tracked, and from an id to its row in the arrays."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from learnscope.options import is_whole

Ids = NDArray[np.int64]
Sample = Literal["first", "even", "random"]
SAMPLES: tuple[Sample, ...] = ("first", "even", "random")
DENSE = 2**24
"""Ids below this are looked up in an array with 4 bytes per id; larger or negative ids by bisection."""


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


class SortedIds(NamedTuple):
    """Ids in ascending order, with their rows."""

    ids: Ids = np.zeros(0, dtype=np.int64)
    rows: NDArray[np.int32] = np.zeros(0, dtype=np.int32)

    def find(self, ids: Ids) -> NDArray[np.int64]:
        if not len(self.ids):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, self.rows[at], -1).astype(np.int64)

    def merged(self, ids: Ids, rows: NDArray[np.int32]) -> SortedIds:
        joined = np.concatenate([self.ids, ids])
        order = np.argsort(joined, kind="stable")
        return SortedIds(joined[order], np.concatenate([self.rows, rows])[order])


class IdIndex:
    """Gives every new id the next row. Ids may be any int64; 0..N−1 take the fast path."""

    def __init__(self) -> None:
        self.size = 0
        self._table: NDArray[np.int32] | None = np.zeros(0, dtype=np.int32)  # row + 1, 0 for unknown
        # two levels: merging a batch into a million ids takes as long as a thousand batches
        self._sorted, self._recent = SortedIds(), SortedIds()

    @property
    def nbytes(self) -> int:
        table = 0 if self._table is None else self._table.nbytes
        return table + sum(array.nbytes for array in (*self._sorted, *self._recent))

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """Rows, −1 for an unknown id."""
        if self._table is not None:
            in_table = (ids >= 0) & (ids < len(self._table))
            if in_table.all():
                return self._table[ids].astype(np.int64) - 1
            rows = np.full(len(ids), -1, dtype=np.int64)
            rows[in_table] = self._table[ids[in_table]].astype(np.int64) - 1
            return rows
        rows = self._sorted.find(ids)
        unknown = rows < 0
        if unknown.any():
            rows[unknown] = self._recent.find(ids[unknown])
        return rows

    def add(self, ids: Ids) -> None:
        """Give new, distinct ids the next rows, in their order."""
        if not len(ids):
            return
        rows = np.arange(self.size, self.size + len(ids), dtype=np.int32)
        self.size += len(ids)
        if self._table is not None and not self._fits(ids, self._table):
            in_table = np.nonzero(self._table)[0]
            self._sorted, self._table = SortedIds(in_table.astype(np.int64), self._table[in_table] - 1), None
        if self._table is not None:
            self._table[ids] = rows + 1
            return
        self._recent = self._recent.merged(ids, rows)
        if len(self._recent.ids) > max(4096, len(self._sorted.ids) // 16):
            self._sorted, self._recent = self._sorted.merged(*self._recent), SortedIds()

    def _fits(self, ids: Ids, table: NDArray[np.int32]) -> bool:
        """Whether the table can hold these ids; makes room for them."""
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= max(DENSE, 4 * self.size):
            return False
        if highest >= len(table):
            self._table = np.zeros(max(highest + 1, len(table) + len(table) // 4), dtype=np.int32)
            self._table[: len(table)] = table
        return True
