"""Ids, classes and groups of the examples in batches, as the task reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.model.data import DataError, InOrder
from learnscope.task import IGNORE, Task


class GroupsError(ValueError):
    """Groups that do not match their examples; the message says what is expected."""


def group_names(groups: Any, examples: int) -> NDArray[Any]:
    """The groups of a batch as an array of numbers or names, copied."""
    named = np.array(groups.detach().cpu().numpy() if isinstance(groups, Tensor) else groups)
    if named.shape == (examples, 1):
        named = named[:, 0]
    if named.shape != (examples,) or named.dtype.kind not in "iuUSb":
        raise GroupsError(
            f"groups of shape {named.shape} and type {named.dtype} were given for {examples} examples: give one whole "
            "number or name an example"
        )
    return named


def groups_of(batches: Iterable[tuple[Any, int]]) -> list[str] | None:
    """The name of every example's group, from the groups and the size of each batch; None if the batches have none."""
    names: list[str] = []
    without = 0
    for number, (groups, size) in enumerate(batches, 1):
        without += groups is None
        if 0 < without < number:
            raise GroupsError(
                f"of the first {number} batches, {without} came without groups and the others with: name all"
            )
        if groups is not None:
            names += map(str, group_names(groups, size).tolist())
    return None if without else names


def classes_of(targets: Iterable[Tensor | None], data: str) -> Tensor | str:
    """The class of every example, from the targets of each batch, `IGNORE` if it has none.

    Or the reason why there are no classes, in which `data` names the data.
    """
    parts = list(targets)
    batches = [part for part in parts if part is not None]
    if len(batches) < len(parts):
        return f"{data} has no targets"
    if any(part.is_floating_point() for part in batches):
        return "float targets are no classes"
    batches = [part.squeeze(-1) if part.ndim == 2 and part.shape[1] == 1 else part for part in batches]
    if any(part.ndim != 1 for part in batches):
        return "an example has several targets, not one class"
    labels = torch.cat(batches).long().cpu()
    return labels if bool((labels != IGNORE).any()) else f"no example of {data} has a target"


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once, numbers first and by value.

    >>> in_order(["10", "b", "9", "a", "9"])
    ['9', '10', 'a', 'b']
    """
    return sorted(set(names), key=_by_value)


def _by_value(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        return True, 0.0, name
    return (number != number, 0.0 if number != number else number, name)


def coded(names: Sequence[str], order: Sequence[str]) -> Tensor:
    """The position of each name in `order`; -1 if it is not in it."""
    place = {name: number for number, name in enumerate(order)}
    return torch.tensor([place.get(name, -1) for name in names], dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Metadata:
    """One entry per example, in the order of the data, on the CPU."""

    ids: Tensor
    """Ids from the batches, or positions in the data."""
    labels: Tensor | str
    """Classes, `IGNORE` for an example without one; or why there are none."""
    groups: list[str] | None


class BatchesWithMetadata(InOrder):
    """The batches of `data` in order, none of which is kept; after the last, `metadata` describes their examples."""

    def __init__(self, data: Any, task: Task) -> None:
        super().__init__(data)
        self.task = task
        self._batches: list[tuple[int, Tensor | None, Tensor | None, Any]] = []

    def __iter__(self) -> Iterator[Any]:
        self._batches = []
        for batch in super().__iter__():
            ids, targets = self.task.ids(batch), self.task.targets(batch)
            if targets is not None and targets.ndim > 1 and targets.shape[1:] != (1,):
                targets = targets[:0]  # tokens are not classes: the shape is enough to see that
            self._batches.append((self.task.size(batch), _copy(ids), _copy(targets), self.task.groups(batch)))
            yield batch

    def metadata(self) -> Metadata:
        """The examples of the last iteration."""
        sizes, ids, targets, groups = zip(*self._batches, strict=True)
        return Metadata(_ids(sizes, ids), classes_of(targets, "the data"), groups_of(zip(groups, sizes, strict=True)))


def _ids(sizes: Sequence[int], batch_ids: Sequence[Tensor | None]) -> Tensor:
    parts = [ids for ids in batch_ids if ids is not None]
    if not parts:
        return torch.arange(sum(sizes))
    if len(parts) < len(batch_ids):
        raise DataError(f"{len(parts)} of {len(batch_ids)} batches carry ids of their examples: give all, or none")
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
