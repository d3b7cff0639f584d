"""From an example's id to its row in the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
DENSE = 2**24
"""Ids below this are looked up in an array with 4 bytes per id; larger or negative ids by bisection."""


class IdIndex:
    """Gives every new id the next row. Ids may be any int64; 0..N−1 take the fast path."""

    def __init__(self) -> None:
        self.size = 0
        self._table: NDArray[np.int32] | None = np.zeros(0, dtype=np.int32)  # row + 1, 0 for unknown
        self._sorted, self._recent = _Sorted.empty(), _Sorted.empty()

    @property
    def nbytes(self) -> int:
        table = 0 if self._table is None else self._table.nbytes
        return table + self._sorted.nbytes + self._recent.nbytes

    def find(self, ids: Ids) -> NDArray[np.int64]:
        """Rows, −1 for an unknown id."""
        if self._table is not None:
            inside = (ids >= 0) & (ids < len(self._table))
            if inside.all():
                return self._table[ids].astype(np.int64) - 1
            rows = np.full(len(ids), -1, dtype=np.int64)
            rows[inside] = self._table[ids[inside]].astype(np.int64) - 1
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
        rows = np.arange(self.size, self.size + len(ids), dtype=np.int64)
        self.size += len(ids)
        if self._table is not None and not self._fits(ids):
            self._leave_table()
        if self._table is not None:
            self._table[ids] = rows + 1
            return
        self._recent = self._recent.merged(ids, rows)
        # two levels: moving a million ids for every batch would take minutes
        if len(self._recent.ids) > max(4096, len(self._sorted.ids) // 16):
            self._sorted = self._sorted.merged(self._recent.ids, self._recent.rows)
            self._recent = _Sorted.empty()

    def _fits(self, ids: Ids) -> bool:
        assert self._table is not None, "asked only while there is a table"
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= max(DENSE, 4 * self.size):
            return False
        if highest >= len(self._table):
            grown = np.zeros(max(highest + 1, len(self._table) + len(self._table) // 4), dtype=np.int32)
            grown[: len(self._table)] = self._table
            self._table = grown
        return True

    def _leave_table(self) -> None:
        assert self._table is not None, "left once"
        known = np.nonzero(self._table)[0]
        self._sorted = _Sorted(known.astype(np.int64), self._table[known].astype(np.int64) - 1)
        self._table = None


class _Sorted:
    """Sorted ids with their rows."""

    def __init__(self, ids: Ids, rows: NDArray[Any]) -> None:
        self.ids, self.rows = ids, rows.astype(np.int32)

    @classmethod
    def empty(cls) -> _Sorted:
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.rows.nbytes

    def find(self, ids: Ids) -> NDArray[np.int64]:
        if not len(self.ids):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, self.rows[at], -1).astype(np.int64)

    def merged(self, ids: Ids, rows: NDArray[Any]) -> _Sorted:
        joined = np.concatenate([self.ids, ids])
        order = np.argsort(joined, kind="stable")
        return _Sorted(joined[order], np.concatenate([self.rows, rows.astype(np.int32)])[order])
