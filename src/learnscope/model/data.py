"""Data that probes read: a fixed subset, taken without touching the user's loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from learnscope.model.guard import preserve_rng
from learnscope.task import Task, task_for

BATCH_SIZE = 64
_EMPTY = "the data given to learnscope is empty: there is no batch to read"


class DataError(TypeError):
    """Data that cannot be read as asked; the message says what to pass instead."""


def fixed_batches(data: Any, task: Task | None = None, *, examples: int | None = None) -> list[Any]:
    """The first `examples` examples of `data` as a list of batches, always the same.

    `data` may be a loader, a data set, a list of batches, or one batch. A loader is never iterated: its
    sampler, generator and workers stay as they are, and its data set is read in order instead. The batches
    are kept, so that a data set with random augmentation still gives a fixed subset.
    """
    with preserve_rng():
        batches: list[Any] = []
        left = examples
        for batch in _in_order(data):
            own_task = task or task_for(batch)
            size = own_task.size(batch)
            if left is not None and size > left:
                batch, size = own_task.take(batch, left), left
            batches.append(batch)
            if left is not None:
                left -= size
                if left <= 0:
                    break
    if not batches:
        raise DataError(_EMPTY)
    return batches


class InOrder:
    """The batches of `data` in order, read again at every iteration, so that none is kept in memory.

    As with `fixed_batches`, a loader is never iterated, only its data set is read.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        empty = True
        for batch in _in_order(self.data):
            empty = False
            yield batch
        if empty:
            raise DataError(_EMPTY)


def _in_order(data: Any) -> Iterator[Any]:
    if isinstance(data, DataLoader):
        return _loader_in_order(data)
    if isinstance(data, IterableDataset):
        raise DataError(
            "an IterableDataset cannot be read without advancing it for the training loop; "
            "pass a list of batches, e.g. list(itertools.islice(loader, 4)) of a loader made for this purpose"
        )
    if isinstance(data, Dataset):
        return iter(_sequential(data, BATCH_SIZE))
    if isinstance(data, torch.Tensor) or not isinstance(data, Sequence) or _is_batch(data):
        if isinstance(data, Iterator):
            raise DataError("an iterator would be used up by looking at it: pass a list of batches")
        if _wraps_loader(data):
            return _loader_in_order(data)
        return iter([data])
    return iter(data)


def _is_batch(data: Sequence[Any]) -> bool:
    """`(x, y)` with tensors is one batch; a list of tuples or dictionaries is several."""
    return len(data) > 0 and isinstance(data[0], torch.Tensor)


def _wraps_loader(data: Any) -> bool:
    # Accelerate's and Lightning's loaders are not DataLoaders but have the attributes of one
    return hasattr(data, "dataset") and hasattr(data, "collate_fn")


def _loader_in_order(loader: Any) -> Iterator[Any]:
    if isinstance(loader.dataset, IterableDataset):
        return _in_order(loader.dataset)
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or BATCH_SIZE
    return iter(_sequential(loader.dataset, size, loader.collate_fn))


def _sequential(dataset: Dataset[Any], size: int, collate: Any = None) -> Iterable[Any]:
    # its own generator: creating an iterator draws a base seed, by default from the global generator
    generator = torch.Generator().manual_seed(0)
    return DataLoader(dataset, batch_size=size, shuffle=False, collate_fn=collate, generator=generator)
