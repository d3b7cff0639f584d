"""Ids, classes and groups of examples, noted while their batches go by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learnscope.model.data import DataError, InOrder
from learnscope.model.examples.groups import classes_of, groups_of
from learnscope.task import Task


@dataclass(frozen=True, slots=True)
class Notes:
    """One entry an example, in the order of the data, on the CPU."""

    ids: Tensor
    """What the batches carry, or the position in the data."""
    labels: Tensor | None
    """Classes, `IGNORE` for an example without one."""
    unlabelled: str | None
    """Why there are no labels."""
    groups: list[str] | None


class Noted(InOrder):
    """The batches of `data` in order; once they have all gone by, `notes` tells of their examples. None is kept."""

    def __init__(self, data: Any, task: Task) -> None:
        super().__init__(data)
        self.task = task
        self._seen: list[tuple[int, Tensor | None, Tensor | None, Any]] = []

    def __iter__(self) -> Iterator[Any]:
        self._seen = []
        for batch in super().__iter__():
            ids, targets = self.task.ids(batch), self.task.targets(batch)
            if targets is not None and targets.ndim > 1 and targets.shape[1:] != (1,):
                targets = targets[:0]  # tokens are no classes: their shape says so
            self._seen.append((self.task.size(batch), _copy(ids), _copy(targets), self.task.groups(batch)))
            yield batch

    def notes(self) -> Notes:
        """Of the batches that the last iteration gave."""
        labels, unlabelled = classes_of(_Kept(), self._seen, "the data")
        return Notes(self._ids(), labels, unlabelled, groups_of(_Kept(), self._seen))

    def _ids(self) -> Tensor:
        given = [ids for _, ids, _, _ in self._seen if ids is not None]
        if not given:
            return torch.arange(sum(size for size, *_ in self._seen))
        if len(given) < len(self._seen):
            raise DataError(f"{len(given)} of {len(self._seen)} batches carry ids of their examples: give all, or none")
        ids = torch.cat(given).long()
        known, times = torch.unique(ids, return_counts=True)
        if len(known) < len(ids):
            raise DataError(
                f"example id {int(known[times.argmax()])} comes {int(times.max())} times in one pass over the data: "
                "give every example an id of its own, or leave ids out (learnscope.IndexedDataset gives them some)"
            )
        return ids


def _copy(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().cpu().clone()


class _Kept(Task):
    """Reads what `Noted` has kept of a batch."""

    def size(self, batch: Any) -> int:
        return int(batch[0])

    def targets(self, batch: Any) -> Tensor | None:
        found: Tensor | None = batch[2]
        return found

    def groups(self, batch: Any) -> Any:
        return batch[3]
