"""Groups and classes of the examples in batches, read through the task; the model is not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.task import IGNORE, Task


class GroupsError(ValueError):
    """Groups that do not fit their examples; the message says what they should be."""


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


def groups_of(task: Task, batches: Iterable[Any]) -> list[str] | None:
    """The name of every example's group, in order; None if the batches carry none."""
    names: list[str] = []
    without = 0
    for place, batch in enumerate(batches):
        found = task.groups(batch)
        without += found is None
        if without and without <= place:
            raise GroupsError(
                f"of the first {place + 1} batches, {without} came without groups and the others with: name all"
            )
        if found is not None:
            names += [str(name) for name in group_names(found, task.size(batch)).tolist()]
    return None if without else names


def classes_of(task: Task, batches: Iterable[Any], data: str) -> tuple[Tensor | None, str | None]:
    """The class of every example, `IGNORE` where it has none; or None and why there are none. `data` names them."""
    parts = [task.targets(batch) for batch in batches]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None, f"{data} has no targets"
    if any(part.is_floating_point() for part in known):
        return None, "float targets are no classes"
    known = [part.squeeze(-1) if part.ndim == 2 and part.shape[1] == 1 else part for part in known]
    if any(part.ndim != 1 for part in known):
        return None, "an example has several targets, not one class"
    labels = torch.cat(known).long().cpu()
    return (labels, None) if bool((labels != IGNORE).any()) else (None, f"no example of {data} has a target")


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once, numbers first and by their size.

    >>> in_order(["10", "b", "9", "a", "9"])
    ['9', '10', 'a', 'b']
    """
    return sorted(set(names), key=_by_size)


def coded(names: Sequence[str], order: Sequence[str]) -> Tensor:
    """The place of each name in `order`; -1 for one that is not there."""
    place = {name: number for number, name in enumerate(order)}
    return torch.tensor([place.get(name, -1) for name in names], dtype=torch.int64)


def _by_size(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        return True, 0.0, name
    return (number != number, 0.0 if number != number else number, name)
