"""Examples in two parts, one to search on and one that the search has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from learnscope.model.data import cut, joined
from learnscope.task import IGNORE, HuggingFaceTask, Task
from learnscope.task.batches import ID_KEYS, first_of


def sides(
    task: Task, batches: Sequence[Any], counts: Sequence[int] | None = None, first: int | None = None
) -> list[list[int | None]]:
    """For each example of each batch, the half that it belongs to, alternately 0 and 1.

    Examples with the same id (parts of one document) go to the same half. If the task has its own `take()`, whole
    batches alternate. Examples without a position that counts are in neither half: None. With `first`,
    documents that come when so many examples are in half 0 are in half 1.
    """
    side_of: dict[Any, int] = {}
    whole_batches = type(task).take is not Task.take
    found: list[list[int | None]] = []
    number = start = searched = 0
    for batch in batches:
        size = task.size(batch)
        positions = [1] * max(size, 1) if counts is None else counts[start : start + size]
        start += size
        ids = None if whole_batches else _documents(task, batch)
        of_batch: list[int | None] = []
        for place in range(1 if whole_batches else size):
            side = None
            if any(positions) if whole_batches else positions[place]:
                document = ("number", number) if ids is None else ("id", ids[place])
                enough = first is not None and searched >= first
                side = side_of.setdefault(document, 1 if enough else len(side_of) % 2)
                searched += side == 0
                number += 1
            of_batch.append(side)
        found.append(of_batch * size if whole_batches else of_batch)
    return found


def halves(
    task: Task, batches: Sequence[Any], counts: Sequence[int] | None = None, first: int | None = None
) -> tuple[list[Any], list[Any]]:
    """The examples of the two `sides`: one to search on, one that the search has not seen."""
    both: tuple[list[Any], list[Any]] = ([], [])
    whole_batches = type(task).take is not Task.take
    for batch, of_batch in zip(batches, sides(task, batches, counts, first), strict=True):
        for number, half in enumerate(both):
            places = [place for place, side in enumerate(of_batch) if side == number]
            part = [cut(task, batch, place, place + 1) for place in places if not whole_batches]
            half.extend(joined(task, part) if not whole_batches else [batch] * bool(places))
    return both


def all_count(task: Task, batches: Sequence[Any]) -> bool:
    """Whether batches of texts show, without running a model, that each of their examples has a position that counts.

    False also where that cannot be seen.
    """
    return type(task) is HuggingFaceTask and task.chosen_loss is None and all(map(_has_targets, batches))


def _has_targets(batch: Any) -> bool:
    """Whether each text has a target that neither a shift by one token nor a mask takes away."""
    labels = first_of(batch, ("labels", "input_ids")) if isinstance(batch, Mapping) else None
    if not isinstance(labels, Tensor) or labels.ndim != 2 or labels.is_floating_point():
        return False
    counted = labels[:, 1:] != IGNORE
    for key in ("attention_mask", "decoder_attention_mask"):
        mask = batch.get(key)
        if mask is None:
            continue
        if mask.shape != labels.shape:
            return False
        counted &= (mask[:, 1:] != 0) & (mask[:, :-1] != 0)
    return bool(torch.all(counted.any(1)))


def _documents(task: Task, batch: Any) -> list[Any] | None:
    """The id of each example's document: numbers, or names."""
    try:
        ids = task.ids(batch)
    except TypeError:  # names, which the task cannot turn into numbers
        names = first_of(batch, ID_KEYS)
        return [str(name) for name in names] if len(names) == task.size(batch) else None
    return None if ids is None else [int(number) for number in ids.tolist()]
