"""Several variants of a block in one pass: parts of a repeated batch, and outputs of its parts as one batch again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Change(NamedTuple):
    """The names of the parameters that a variant changes, and a context in which they are changed."""

    names: Sequence[str]
    applied: Callable[[], AbstractContextManager[None]]


class NotTogether(RuntimeError):
    """Variants of this model cannot be run as one batch; the message says why."""


def shape_of(leaf: Any) -> torch.Size | None:
    return leaf.shape if isinstance(leaf, Tensor) and not leaf.is_nested else None


def part_of(leaf: Any, shape: torch.Size | None, number: int) -> Any:
    """Of a value that a block is called with for a repeated batch: that of one copy, which had this shape by itself.

    A tensor of the same shape as for one copy, such as a mask or positions, is the same for all.
    """
    if shape_of(leaf) == shape and not (isinstance(leaf, Tensor) and leaf.is_nested):
        return leaf
    if not isinstance(leaf, Tensor) or not shape or leaf.shape[1:] != shape[1:] or leaf.shape[0] % shape[0]:
        raise NotTogether("a block is called with other values for a repeated batch than for the batch itself")
    return leaf[number * shape[0] : (number + 1) * shape[0]]


def joined_leaves(copies: Sequence[Sequence[Any]], size: int) -> list[Any]:
    """The values of several copies of a batch of `size` examples: one after the other where there is one an example."""
    if len({len(leaves) for leaves in copies}) != 1:
        raise NotTogether("a block does not always return the same number of values")
    joined: list[Any] = []
    for leaves in zip(*copies, strict=True):
        first = leaves[0]
        if isinstance(first, Tensor) and first.ndim and first.shape[0] == size:
            joined.append(torch.cat(list(leaves)))
        elif all(leaf is first for leaf in leaves) or not any(isinstance(leaf, Tensor) for leaf in leaves):
            joined.append(first)
        else:
            raise NotTogether("a block returns a tensor that is not one an example")
    return joined
