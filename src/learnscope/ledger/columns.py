"""Parallel arrays with one entry per example, which grow as examples come."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope.ledger.batch import UNKNOWN_TARGET

COUNTS = (
    "presentations", "nonfinite", "times_correct", "forgetting_events", "first_correct", "first_learned",
    "last_correct", "first_epoch", "last_epoch", "learned_epoch",
)  # fmt: skip
MEANS = ("confidence", "confidence_m2", "aum", "el2n_mean", "el2n_last", "cumulative_loss")
"""Over the presentations whose scores were finite."""
GRAND = ("grand_mean", "grand_last")

_DTYPES: dict[str, Any] = {
    "id": np.int64,
    **dict.fromkeys(COUNTS, np.int32),
    **dict.fromkeys(MEANS, np.float64),
    "target": np.int64,
    "checksum": np.float64,
    **dict.fromkeys(GRAND, np.float64),
    "grand_count": np.int32,
}
_FILLS: dict[str, Any] = {"target": UNKNOWN_TARGET, "checksum": np.nan}
ALWAYS = ("id", *COUNTS, *MEANS)
OPTIONAL = ("target", "checksum", *GRAND, "grand_count")
"""Made when they are first needed."""


class Columns:
    """Arrays of equal length. They grow by a quarter, so that a ledger never allocates much more than it uses."""

    def __init__(self) -> None:
        self.size = 0
        self._arrays: dict[str, NDArray[Any]] = {name: _filled(name, 0) for name in ALWAYS}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The whole array, spare room at the end included."""
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def need(self, *names: str) -> None:
        """Make optional columns that do not exist yet."""
        for name in names:
            if name not in self._arrays:
                self._arrays[name] = _filled(name, len(self._arrays["id"]))

    def grow(self, size: int) -> None:
        capacity = len(self._arrays["id"])
        if size > capacity:
            self._resize(max(size, capacity + capacity // 4, 1024))
        self.size = size

    def trim(self) -> None:
        if len(self._arrays["id"]) > self.size:
            self._resize(self.size)

    def used(self) -> dict[str, NDArray[Any]]:
        """The arrays without spare room: views, not copies."""
        return {name: array[: self.size] for name, array in self._arrays.items()}

    def fill(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._arrays = {name: np.array(value, dtype=_DTYPES[name]) for name, value in arrays.items()}
        self.size = len(self._arrays["id"])

    def _resize(self, capacity: int) -> None:
        for name, old in self._arrays.items():  # one column at a time: never two copies of everything
            self._arrays[name] = _filled(name, capacity)
            self._arrays[name][: self.size] = old[: self.size]


def _filled(name: str, length: int) -> NDArray[Any]:
    if name in _FILLS:
        return np.full(length, _FILLS[name], dtype=_DTYPES[name])
    return np.zeros(length, dtype=_DTYPES[name])  # spare room takes no memory until it is used
