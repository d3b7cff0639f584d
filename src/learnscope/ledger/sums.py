"""Presentations since the last measurement, over all examples and by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learnscope import native
from learnscope.ledger.batch import finite

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
        names, which = ([groups], None) if isinstance(groups, str) else _numbered(np.asarray(groups))
        fresh = [name for name in names if name not in self.names]
        if len(self.names) + len(fresh) > MOST_GROUPS:
            self.names, self.table, self.too_many = [], np.zeros((0, _COLUMNS)), True
            return
        if fresh:
            self.names += fresh
            self.table = np.concatenate([self.table, np.zeros((len(fresh), _COLUMNS))])
        rows = [self.names.index(name) for name in names]
        kernels: Any = native.kernels
        if kernels is None:
            self._add(which, rows, correct, p_gold, loss)
            return
        place = np.zeros(len(p_gold), dtype=np.int64) if which is None else np.ascontiguousarray(which, np.int64)
        scores: list[Any] = [np.ascontiguousarray(each) for each in (correct, p_gold, loss)]
        kernels.group_sums(place, np.array(rows), *scores, self.table)

    def _add(
        self, which: NDArray[np.int64] | None, rows: list[int], correct: NDArray[np.bool_], p_gold: NDArray[np.float64],
        loss: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Presentations of the groups in these rows of the table."""
        if (scored := finite(p_gold, loss)) is not None:
            p_gold, loss = np.where(scored, p_gold, 0.0), np.where(scored, loss, 0.0)
        table = self.table[rows]
        table[:, 0] += _counts(which, None, len(p_gold), len(rows))
        table[:, 1] += _counts(which, correct, len(p_gold), len(rows))
        table[:, 2] += _counts(which, scored, len(p_gold), len(rows))
        table[:, 3], table[:, 4] = _added(which, table[:, 3], p_gold), _added(which, table[:, 4], loss)
        self.table[rows] = table

    def means(self) -> dict[str, NDArray[np.float64]]:
        """By group, in the order of `names`: share correct, mean p(gold), mean loss, presentations; NaN if none."""
        shown, correct, finite, p_gold, loss = self.table.T
        with np.errstate(invalid="ignore"):
            accuracy, confidence, mean_loss = correct / shown, p_gold / finite, loss / finite
        return {"accuracy": accuracy, "confidence": confidence, "loss": mean_loss, "presentations": shown}

    def in_order(self) -> list[int]:
        """Indices of the groups in the order of their names, numbers by size."""
        return sorted(range(len(self.names)), key=lambda i: _natural(self.names[i]))


def _numbered(groups: NDArray[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """The names of the groups that there are, and of each example which of them is its own."""
    if groups.dtype.kind in "iu" and groups.min() >= 0 and groups.max() < 1000:  # classes: faster than sorting
        present = np.bincount(groups) > 0
        values = np.flatnonzero(present)
        which = groups if len(values) == len(present) else (np.cumsum(present) - 1)[groups]
    else:
        values, which = np.unique(groups, return_inverse=True)
    return [str(value) for value in values.tolist()], which


def _counts(which: NDArray[np.int64] | None, chosen: NDArray[np.bool_] | None, total: int, groups: int) -> Any:
    """How many examples there are of each group, of those chosen or of all; `which` is None for a single group."""
    if which is None:
        return total if chosen is None else np.count_nonzero(chosen)
    return np.bincount(which if chosen is None else which[chosen], minlength=groups)


def _added(
    which: NDArray[np.int64] | None, sums: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:  # fmt: skip
    """The sums with the values of each group added.

    They are added one by one to the sums so far: the same to the last digit, however examples were batched.
    """
    values = np.concatenate([sums, values])
    if which is None:
        return np.add.accumulate(values)[-1:]
    return np.bincount(np.concatenate([np.arange(len(sums)), which]), weights=values).astype(np.float64, copy=False)


def _natural(name: str) -> tuple[bool, int, str]:
    is_integer = name.removeprefix("-").isdecimal()
    return not is_integer, int(name) if is_integer else 0, name
