"""Groups and classes of the examples in batches, as the task reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learnscope.task import IGNORE


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
    for place, (groups, size) in enumerate(batches):
        without += groups is None
        if without and without <= place:
            raise GroupsError(
                f"of the first {place + 1} batches, {without} came without groups and the others with: name all"
            )
        if groups is not None:
            names += [str(name) for name in group_names(groups, size).tolist()]
    return None if without else names


def classes_of(targets: Iterable[Tensor | None], data: str) -> tuple[Tensor | None, str | None]:
    """The class of every example, from the targets of each batch, `IGNORE` if it has none.

    Or None and the reason why there are no classes, in which `data` names the data.
    """
    parts = list(targets)
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
    """Each name once, numbers first and by value.

    >>> in_order(["10", "b", "9", "a", "9"])
    ['9', '10', 'a', 'b']
    """
    return sorted(set(names), key=_by_value)


def coded(names: Sequence[str], order: Sequence[str]) -> Tensor:
    """The position of each name in `order`; -1 if it is not in it."""
    place = {name: number for number, name in enumerate(order)}
    return torch.tensor([place.get(name, -1) for name in names], dtype=torch.int64)


def _by_value(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        return True, 0.0, name
    return (number != number, 0.0 if number != number else number, name)
