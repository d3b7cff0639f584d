"""Data that probes read: a fixed subset, taken without touching the user's loader; cutting and joining its batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from learnscope.model.guard import preserve_rng
from learnscope.task import Task, task_for
from learnscope.task.batches import map_leaves

BATCH_SIZE = 64
JOINED = 1024
"""Batches are joined up to this many examples: the fixed cost of a pass is then negligible."""


class DataError(TypeError):
    """Data that cannot be read as asked; the message says what to pass instead."""


def fixed_batches(
    data: Any, task: Task | None = None, *, model: nn.Module | None = None, examples: int | None = None
) -> list[Any]:
    """The first `examples` examples of `data` as a list of batches, always the same.

    `data` may be a loader, a data set, a list of batches, or one batch. A loader is never iterated, so its sampler,
    generator and workers stay as they are: its data set is read in order instead.
    """
    batches: list[Any] = []
    left = math.inf if examples is None else examples
    with preserve_rng():
        for batch in InOrder(data):
            own_task = task or task_for(batch, model)
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


def cut(task: Task, batch: Any, start: int, stop: int) -> Any:
    """Examples `start` to `stop` of the batch; values that are not per example stay whole, as in `Task.take`."""
    size = task.size(batch)
    if start == 0 and stop == size:
        return batch
    if type(task).take is not Task.take:
        raise DataError(
            f"{type(task).__name__} has its own take(), which cannot cut an example out of the middle of a batch: "
            "give batches of one example each"
        )

    def change(leaf: Any) -> Any:
        return leaf[start:stop] if is_per_example(leaf, size) or _is_plain_values(leaf, size) else leaf

    return map_leaves(batch, change)


def joined(
    task: Task, batches: Iterable[Any], max_bytes: int | None = None, *, examples: int = JOINED
) -> Iterator[Any]:
    """Consecutive batches of one shape joined, up to a size, if all values are tensors with one row per example."""
    if type(task).take is not Task.take:
        yield from batches
        return
    waiting: list[Any] = []
    count = total_bytes = 0
    for batch in batches:
        size, nbytes = task.size(batch), sum(leaf.nbytes for leaf in leaves(batch) if isinstance(leaf, Tensor))
        fits = count + size <= examples and (max_bytes is None or total_bytes + nbytes <= max_bytes)
        shape = _shape(task, batch)
        if waiting and not (fits and shape is not None and shape == _shape(task, waiting[0])):
            yield _concatenated(waiting)
            waiting, count, total_bytes = [], 0, 0
        waiting.append(batch)
        count, total_bytes = count + size, total_bytes + nbytes
    if waiting:
        yield _concatenated(waiting)


def _concatenated(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    columns = iter([torch.cat(column) for column in zip(*map(leaves, batches), strict=True)])
    return map_leaves(batches[0], lambda _: next(columns))


def _shape(task: Task, batch: Any) -> list[Any] | None:
    """What two batches must have in common to be joined; None for a batch that cannot be joined."""
    size = task.size(batch)
    values = leaves(batch)
    if not size or not all(is_per_example(leaf, size) for leaf in values):
        return None
    keys = list(batch) if isinstance(batch, Mapping) else None
    return [type(batch), keys, *((leaf.shape[1:], leaf.dtype, leaf.device) for leaf in values)]


def is_per_example(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == size


def _is_plain_values(leaf: Any, size: int) -> bool:
    """A list or NumPy array with one value per example, which vmap cannot split."""
    has_length = isinstance(leaf, (list, tuple)) or bool(getattr(leaf, "shape", None))
    return not isinstance(leaf, Tensor) and has_length and len(leaf) == size


def has_plain_values(batch: Any, size: int) -> bool:
    return any(_is_plain_values(leaf, size) for leaf in leaves(batch))


def leaves(batch: Any) -> list[Any]:
    values: list[Any] = []
    map_leaves(batch, values.append)
    return values
