"""The numbers of every example, in arrays that grow as examples come."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.ledger.batch import UNKNOWN_TARGET
from learnscope.ledger.room import resize, room

COUNTS = (
    "presentations", "nonfinite", "times_correct", "forgetting_events", "first_correct", "first_learned",
    "last_correct", "first_epoch", "last_epoch", "learned_epoch",
)  # fmt: skip
MEANS = ("confidence", "confidence_m2", "aum", "el2n_mean", "el2n_last", "cumulative_loss")
"""Over the presentations whose scores were finite."""
GRAND = ("grand_mean", "grand_last")

OTHER = ("other_class", "other_votes")
"""A class that was predicted in place of the label most of the times that it was wrong; see `presentation.py`."""

OPTIONAL = ("target", "checksum", *GRAND, "grand_count", *OTHER)
"""Of ledgers that were given them."""
ALWAYS = ("id", *COUNTS, *MEANS)
CHUNK = 2**14
"""Rows that are sorted into columns together, so that they are still in the cache for the last column."""

Rows = NDArray[Any]
"""Rows of the table, whose fields have the names of columns."""
_FIELDS = np.dtype([
    ("id", np.int64), ("target", np.int64), ("checksum", np.float64), *((name, np.float64) for name in MEANS),
    *((name, np.int32) for name in COUNTS),
])  # fmt: skip
_ROWS = "rows"
_DTYPES: dict[str, np.dtype[Any]] = {
    # as bytes that belong together, rows are copied several times as fast as field by field
    _ROWS: np.dtype((np.void, _FIELDS.itemsize)), **dict.fromkeys(GRAND, np.dtype(np.float64)),
    "grand_count": np.dtype(np.int32), "other_class": np.dtype(np.int16), "other_votes": np.dtype(np.uint8),
}  # fmt: skip


def dtype_of(name: str) -> np.dtype[Any]:
    """Of a column."""
    return _DTYPES[name] if name in _DTYPES else _FIELDS[name]


class Columns:
    """Numbers of every example, in rows: of millions of examples, a batch then reads one place each, not twenty.

    The arrays grow by a quarter, and by moving pages where the system can: a ledger never takes much more memory than
    it uses.
    """

    def __init__(self) -> None:
        self.size = 0
        self._arrays: dict[str, NDArray[Any]] = {_ROWS: room(0, _DTYPES[_ROWS])}
        self._given: set[str] = set()
        """Optional columns that there are."""

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The whole column, spare room at the end included; a view."""
        if name in self._arrays:
            return self._arrays[name]
        column: NDArray[Any] = self._arrays[_ROWS].view(_FIELDS)[name]
        return column

    def __contains__(self, name: str) -> bool:
        return name in ALWAYS or name in self._given

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def names(self) -> list[str]:
        """Of all columns that there are."""
        return [*ALWAYS, *(name for name in OPTIONAL if name in self._given)]

    def ids_at(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """The ids of these rows; −1 reads whatever is last."""
        ids: NDArray[np.int64] = self["id"][rows]
        return ids

    @property
    def rows(self) -> NDArray[np.void]:
        """All rows, spare room at the end included, as bytes that belong together."""
        return self._arrays[_ROWS]

    def take(self, at: NDArray[Any]) -> Rows:
        """Copies of rows, with the fields of the columns that every ledger has."""
        return self._arrays[_ROWS].take(at).view(_FIELDS)

    def put(self, at: NDArray[Any], rows: Rows) -> None:
        """Write back what `take` gave."""
        self._arrays[_ROWS][at] = rows.view(_DTYPES[_ROWS])

    def need(self, *names: str) -> None:
        """Make optional columns that do not exist yet."""
        for name in names:
            if name not in self._given:
                self._given.add(name)
                if name in _DTYPES:
                    self._arrays[name] = room(self._capacity, _DTYPES[name])

    def grow(self, size: int) -> None:
        before = self.size
        if size > self._capacity:
            self._resize(max(size, self._capacity + self._capacity // 4, 1024))
        self.size = size
        self["target"][before:size], self["checksum"][before:size] = UNKNOWN_TARGET, np.nan

    def trim(self) -> None:
        if self._capacity > self.size:
            self._resize(self.size)

    def used(self) -> dict[str, NDArray[Any]]:
        """The columns without spare room: views, not copies."""
        return {name: self[name][: self.size] for name in self.names}

    def ordered(self, order: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Copies of the columns, with their rows in this order."""
        columns = {name: np.empty(len(order), dtype=self[name].dtype) for name in self.names}
        for start in range(0, len(order), CHUNK):
            at = order[start : start + CHUNK]
            rows = self.take(at)
            for name, column in columns.items():
                column[start : start + CHUNK] = self[name][at] if name in _DTYPES else rows[name]
        return columns

    def fill(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Hold these columns, in an empty ledger."""
        self.need(*(name for name in arrays if name in OPTIONAL))
        self.grow(len(arrays["id"]))
        for name, values in arrays.items():
            self[name][: self.size] = values
        self.trim()

    @property
    def _capacity(self) -> int:
        return len(self._arrays[_ROWS])

    def _resize(self, capacity: int) -> None:
        for name in list(self._arrays):
            resize(self._arrays, name, self.size, capacity)
