"""Resizing a batch: fewer or repeated examples, shorter or repeated texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnscope.model.batches import is_per_example
from learnscope.task import Task
from learnscope.task.batches import first_of, first_tensor, map_leaves
from learnscope.task.huggingface import MODEL_INPUTS


def token_length(batch: Any) -> int:
    """Tokens per row of the batch's inputs; 0 if they are not token ids."""
    tokens = _main_input(batch)
    return int(tokens.shape[1]) if tokens is not None else 0


def real_tokens(batch: Any) -> int | None:
    """Number of tokens that the attention mask does not hide; None if the inputs are not token ids."""
    tokens = _main_input(batch)
    if tokens is None:
        return None
    mask = first_of(batch, ("attention_mask",))
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        return int((mask != 0).sum())
    return tokens.numel()


def resized(task: Task, batch: Any, examples: int, length: int) -> Any:
    """The batch with `examples` examples of `length` tokens each (0: length unchanged).

    Examples and tokens are taken from the beginning, and repeated if there are too few. Texts that are padded on the
    left are cut on the left, otherwise nothing but padding would remain.
    """
    size, tokens = task.size(batch), token_length(batch)
    if (examples, length or tokens) == (size, tokens):
        return batch
    if type(task).take is not Task.take:
        raise ValueError(f"{type(task).__name__} cuts batches in a way of its own (take)")
    rows = torch.arange(examples) % size
    columns = _columns(batch, length, tokens) if length and length != tokens else None

    def change(leaf: Any) -> Any:
        if not is_per_example(leaf, size):
            return leaf
        chosen = leaf[rows.to(leaf.device)]
        if columns is not None and leaf.ndim > 1 and leaf.shape[1] == tokens:
            chosen = chosen[:, columns.to(leaf.device)]
        return chosen

    return map_leaves(batch, change)


def _columns(batch: Any, length: int, tokens: int) -> Tensor:
    mask = first_of(batch, ("attention_mask",))
    on_the_left = isinstance(mask, Tensor) and mask.ndim == 2 and int(mask[:, 0].sum()) < int(mask[:, -1].sum())
    start = max(tokens - length, 0) if on_the_left else 0
    return start + torch.arange(length) % tokens


def _main_input(batch: Any) -> Tensor | None:
    """Token ids: the integers in two dimensions that the model reads."""
    inputs = first_of(batch, MODEL_INPUTS)
    inputs = first_tensor(batch) if inputs is None else inputs
    if not isinstance(inputs, Tensor) or inputs.ndim != 2 or inputs.is_floating_point() or inputs.dtype == torch.bool:
        return None
    return inputs
