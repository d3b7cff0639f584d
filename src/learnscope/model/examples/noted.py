"""Ids, classes and groups of examples, collected while their batches are read."""

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
    """One entry per example, in the order of the data, on the CPU."""

    ids: Tensor
    """Ids from the batches, or positions in the data."""
    labels: Tensor | None
    """Classes; `IGNORE` for an example without one."""
    unlabelled: str | None
    """Why there are no labels."""
    groups: list[str] | None


class NotedBatches(InOrder):
    """The batches of `data` in order, none of which is kept; after the last, `notes` describes their examples."""

    def __init__(self, data: Any, task: Task) -> None:
        super().__init__(data)
        self.task = task
        self._seen: list[tuple[int, Tensor | None, Tensor | None, Any]] = []

    def __iter__(self) -> Iterator[Any]:
        self._seen = []
        for batch in super().__iter__():
            ids, targets = self.task.ids(batch), self.task.targets(batch)
            if targets is not None and targets.ndim > 1 and targets.shape[1:] != (1,):
                targets = targets[:0]  # tokens are not classes: the shape is enough to see that
            self._seen.append((self.task.size(batch), _copy(ids), _copy(targets), self.task.groups(batch)))
            yield batch

    def notes(self) -> Notes:
        """The examples of the last iteration."""
        labels, unlabelled = classes_of((targets for _, _, targets, _ in self._seen), "the data")
        groups = groups_of((groups, size) for size, _, _, groups in self._seen)
        return Notes(self._ids(), labels, unlabelled, groups)

    def _ids(self) -> Tensor:
        parts = [ids for _, ids, _, _ in self._seen if ids is not None]
        if not parts:
            return torch.arange(sum(size for size, *_ in self._seen))
        if len(parts) < len(self._seen):
            raise DataError(f"{len(parts)} of {len(self._seen)} batches carry ids of their examples: give all, or none")
        ids = torch.cat(parts).long()
        unique, times = torch.unique(ids, return_counts=True)
        if len(unique) < len(ids):
            raise DataError(
                f"example id {int(unique[times.argmax()])} comes {int(times.max())} times in one pass over the data: "
                "give every example an id of its own, or leave ids out (learnscope.IndexedDataset gives them some)"
            )
        return ids


def _copy(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().cpu().clone()
