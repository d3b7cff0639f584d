"""Presentations since the last measurement, over all examples and by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_GROUPS = 100
"""With more groups than this, none are kept apart."""
_COLUMNS = 5
"""Presentations, correct ones, those with finite scores, and of these the sums of p(gold) and loss."""


class GroupSums:
    """Sums by group: the same few numbers per group, whatever the number of examples.

    >>> sums = GroupSums()
    >>> sums.add(["cat", "dog", "cat"], correct=np.array([True, True, False]), p_gold=np.array([0.9, 0.5, 0.1]),
    ...          loss=np.array([0.1, 0.7, 2.3]))
    >>> sums.means()["accuracy"].tolist(), sums.names
    ([0.5, 1.0], ['cat', 'dog'])
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.table: NDArray[np.float64] = np.zeros((0, _COLUMNS))
        self.too_many = False
        """Whether groups were dropped because there were more than `MOST_GROUPS`."""

    def add(
        self, groups: str | Sequence[Any] | NDArray[Any], *, correct: NDArray[np.bool_], p_gold: NDArray[np.float64],
        loss: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """One presentation of each example; `groups` is the group of each, or the one group of all."""
        if self.too_many or not len(groups):
            return
        finite = np.isfinite(p_gold) & np.isfinite(loss)
        if not finite.all():
            p_gold, loss = np.where(finite, p_gold, 0.0), np.where(finite, loss, 0.0)
        if isinstance(groups, str):
            names, which = [groups], np.zeros(len(finite), np.int64)
        else:
            groups = np.asarray(groups)
            if groups.dtype.kind in "iu" and groups.min() >= 0 and groups.max() < 1000:  # classes: faster than sorting
                present = np.bincount(groups) > 0
                values, which = np.flatnonzero(present), (np.cumsum(present) - 1)[groups]
            else:
                values, which = np.unique(groups, return_inverse=True)
            names = [str(value) for value in values.tolist()]
        fresh = [name for name in names if name not in self.names]
        if len(self.names) + len(fresh) > MOST_GROUPS:
            self.names, self.table, self.too_many = [], np.zeros((0, _COLUMNS)), True
            return
        self.names += fresh
        self.table = np.concatenate([self.table, np.zeros((len(fresh), _COLUMNS))])
        rows = [self.names.index(name) for name in names]
        # examples are added one by one to the sums so far: the same to the last digit, however they were batched
        which = np.concatenate([np.arange(len(names)), which])
        for column, part in enumerate((np.ones(len(finite)), correct, finite, p_gold, loss)):
            self.table[rows, column] = np.bincount(which, weights=np.concatenate([self.table[rows, column], part]))

    def means(self) -> dict[str, NDArray[np.float64]]:
        """By group, in the order of `names`: share correct, mean p(gold), mean loss, presentations; NaN if none."""
        shown, correct, finite, p_gold, loss = self.table.T
        with np.errstate(invalid="ignore"):
            accuracy, confidence, mean_loss = correct / shown, p_gold / finite, loss / finite
        return {"accuracy": accuracy, "confidence": confidence, "loss": mean_loss, "presentations": shown}

    def in_order(self) -> list[int]:
        """Indices of the groups in the order of their names, numbers by size."""
        return sorted(range(len(self.names)), key=lambda i: _natural(self.names[i]))


def _natural(name: str) -> tuple[bool, int, str]:
    is_integer = name.removeprefix("-").isdecimal()
    return not is_integer, int(name) if is_integer else 0, name
