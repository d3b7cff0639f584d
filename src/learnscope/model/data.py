"""Data that probes read: a fixed subset, taken without touching the user's loader."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from learnscope.model.guard import preserve_rng
from learnscope.task import Task, task_for

BATCH_SIZE = 64


class DataError(TypeError):
    """Data that cannot be read as asked; the message says what to pass instead."""


def fixed_batches(data: Any, task: Task | None = None, *, examples: int | None = None) -> list[Any]:
    """The first `examples` examples of `data` as a list of batches, always the same.

    `data` may be a loader, a data set, a list of batches, or one batch. A loader is never iterated, so its sampler,
    generator and workers stay as they are: its data set is read in order instead.
    """
    batches: list[Any] = []
    left = math.inf if examples is None else examples
    with preserve_rng():
        for batch in InOrder(data):
            own_task = task or task_for(batch)
            size = own_task.size(batch)
            batches.append(own_task.take(batch, int(left)) if size > left else batch)
            left -= size
            if left <= 0:
                break
    return batches


class InOrder:
    """The batches of `data` in order, read again at every iteration; of a loader only its data set is read."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        empty = True
        for batch in _in_order(self.data):
            empty = False
            yield batch
        if empty:
            raise DataError("the data given to learnscope is empty: there is no batch to read")


def _in_order(data: Any) -> Iterable[Any]:
    # Accelerate's and Lightning's loaders are not DataLoaders but have the attributes of one
    is_loader = hasattr(data, "dataset") and hasattr(data, "collate_fn")
    loader = data if is_loader and not isinstance(data, Dataset | Sequence | Iterator) else None
    dataset = data if loader is None else loader.dataset
    if isinstance(dataset, IterableDataset):
        raise DataError(
            "an IterableDataset cannot be read without advancing it for the training loop; "
            "pass a list of batches, e.g. list(itertools.islice(loader, 4)) of a loader made for this purpose"
        )
    if isinstance(dataset, Dataset) or loader is not None:
        sampler = getattr(loader, "batch_sampler", None)
        size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or BATCH_SIZE
        # its own generator: creating an iterator draws a base seed, by default from the global generator
        generator = torch.Generator().manual_seed(0)
        collate = getattr(loader, "collate_fn", None)
        return DataLoader(dataset, batch_size=size, shuffle=False, collate_fn=collate, generator=generator)
    if isinstance(data, Iterator):
        raise DataError("an iterator would be used up by looking at it: pass a list of batches")
    # `(x, y)` with tensors is one batch; a list of tuples or dictionaries is several
    several = isinstance(data, Sequence) and not (len(data) > 0 and isinstance(data[0], torch.Tensor))
    return data if several else [data]
