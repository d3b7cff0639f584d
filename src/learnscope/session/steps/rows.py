"""The ids of the last steps' examples, for when something happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from learnscope.task.batches import ID_KEYS, first_of
from learnscope.tensor.examples.at_once import own_numbers

STEPS = 16
"""Steps whose ids are kept."""
MOST = 4096
"""Ids that a record names."""


class RecentRows:
    """Ids by step, as the loop handed them over; they are made plain only if somebody asks."""

    def __init__(self) -> None:
        self.kept: dict[int, list[Any]] = {}

    def add(self, step: int, ids: Any) -> None:
        if ids is None:
            return
        if step not in self.kept:
            self.kept[step] = []
            while len(self.kept) > STEPS:
                del self.kept[next(iter(self.kept))]
        self.kept[step].append(ids)

    def batches(self, step: int) -> int:
        """How many batches of ids there are of a step."""
        return len(self.kept.get(step, ()))

    def of(self, step: int, batches: int | None = None) -> list[int | str]:
        """The ids of a step, of all its batches or of the first few."""
        return [row for ids in self.kept.get(step, [])[:batches] for row in plain_ids(ids)]

    def drop(self, step: int, batches: int | None = None) -> None:
        """The step never came: they are not of the next attempt at it."""
        del self.kept.get(step, [])[:batches]


def ids_in(batch: Any) -> Any:
    """A copy of the ids in a batch: under a key for them, or the third of `(x, y, index)`; None if there are none."""
    found = first_of(batch, ID_KEYS)
    if found is None and isinstance(batch, tuple | list) and len(batch) > 2:
        found = batch[2]
        if not isinstance(found, Tensor | np.ndarray) or _rows(found) != _rows(batch[0]):
            return None
    if isinstance(found, Tensor):
        whole = not found.is_floating_point() and not found.is_complex() and found.ndim == 1
        return found.detach().clone() if whole else None
    if isinstance(found, np.ndarray):
        return found.copy() if found.ndim == 1 and found.dtype.kind in "iuU" else None
    named = isinstance(found, list | tuple) and all(isinstance(row, int | str) for row in found)
    return list(found) if named else None


def own_ids(ids: Any) -> Any:
    """A copy: the loop may fill the same buffer with the next batch's."""
    if isinstance(ids, Tensor):
        return own_numbers(ids)
    return ids.copy() if isinstance(ids, np.ndarray) else ids


def plain_ids(ids: Any) -> list[int | str]:
    """As JSON can hold them.

    >>> plain_ids(np.array([3, 4]))
    [3, 4]
    """
    listed: Sequence[Any] = ids.tolist() if isinstance(ids, Tensor | np.ndarray | memoryview) else list(ids)
    flat = listed if isinstance(listed, list) else [listed]
    return [row if isinstance(row, int | str) else str(row) for row in flat]


def _rows(values: Any) -> int | None:
    return len(values) if getattr(values, "ndim", 0) > 0 else None
