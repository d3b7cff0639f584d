"""Outputs of blocks that were recorded: kept bit for bit, and returned in place of running the block again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from learnscope.model.outputs.repeated import joined_leaves

Output = tuple[list[Any], Any]
"""A block's output: its leaves, and the structure they come from."""


def replay(name: str, outputs: Iterator[Output], /, *_args: Any, **_kwargs: Any) -> Any:
    output = next(outputs, None)
    if output is None:
        raise RuntimeError(f"{name} runs more often than it was recorded: run the same batches again")
    # copies: the next block may write into its input
    return pytree.tree_unflatten([copied(leaf) for leaf in output[0]], output[1])


def repeated(outputs: Sequence[Output], sizes: Sequence[int], copies: int) -> Iterator[Output]:
    """The outputs of a block for batches that are repeated so many times."""
    for (leaves, spec), size in zip(outputs, sizes, strict=True):
        yield joined_leaves([leaves] * copies, size), spec


def copied(leaf: Any) -> Any:
    """A copy with the same bits and the same strides: kernels may round differently for another layout."""
    if not isinstance(leaf, Tensor):
        return leaf
    copy = leaf.detach().clone()
    if leaf.is_nested or leaf.layout is not torch.strided or copy.stride() == leaf.stride():
        return copy
    empty = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
    return empty.set_(leaf.untyped_storage().clone(), leaf.storage_offset(), leaf.shape, leaf.stride())


def same(a: Any, b: Any) -> bool:
    return same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is type(b) and a == b


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.is_nested or b.is_nested:
        return a.is_nested and b.is_nested and all(map(same_bits, a.unbind(), b.unbind()))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return torch.equal(raw[0], raw[1])
