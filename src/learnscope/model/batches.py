"""Cutting batches into examples, and joining batches of one shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from learnscope.model.data import DataError
from learnscope.task import Task
from learnscope.task.batches import map_leaves

JOINED = 1024
"""Batches are joined up to this many examples: the fixed cost of a pass is then negligible."""


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


def joined(task: Task, batches: Iterable[Any], max_bytes: int) -> Iterator[Any]:
    """Consecutive batches of one shape joined, up to a size, if all values are tensors with one row per example."""
    if type(task).take is not Task.take:
        yield from batches
        return
    waiting: list[Any] = []
    examples = total_bytes = 0
    for batch in batches:
        size, nbytes = task.size(batch), sum(leaf.nbytes for leaf in leaves(batch) if isinstance(leaf, Tensor))
        fits = examples + size <= JOINED and total_bytes + nbytes <= max_bytes
        shape = _shape(task, batch)
        if waiting and not (fits and shape is not None and shape == _shape(task, waiting[0])):
            yield _concatenated(waiting)
            waiting, examples, total_bytes = [], 0, 0
        waiting.append(batch)
        examples, total_bytes = examples + size, total_bytes + nbytes
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
