"""The call that a task makes to a model for a batch, its floating-point operations, and batches of other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from learnscope.model.batches import is_per_example
from learnscope.task import Task
from learnscope.task.batches import first_of, first_tensor, map_leaves
from learnscope.task.huggingface import MODEL_INPUTS


class Call(NamedTuple):
    """One call of a model, and its logits. `kwargs` is None if the task calls the model several times or not at all."""

    run: Callable[[], Any]
    logits: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None


def call_of(model: nn.Module, task: Task, batch: Any) -> Call:
    """How `task` calls `model` for `batch`, observed in one pass; for use under the guard."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    handle = model.register_forward_pre_hook(keep, with_kwargs=True, prepend=True)
    try:
        logits = task.logits(model, batch)
    finally:
        handle.remove()
    if len(calls) != 1:
        return Call(lambda: task.logits(model, batch), logits)
    [(args, kwargs)] = calls
    return Call(lambda: model(*args, **kwargs), logits, args, kwargs)


def counted_flops(run: Callable[[], object]) -> int | str:
    """Operations of `run`, a multiply-add counting as two; if nothing could be counted, the reason as text.

    Only matrix products, convolutions and attention are counted. Attention runs as plain matrix products, since the
    counter does not know the CPU's fused kernel; a causal mask then saves nothing, and all T² pairs are counted.
    """
    counter = FlopCounterMode(display=False)
    try:
        with counter, sdpa_kernel(SDPBackend.MATH):
            run()
    except (RuntimeError, TypeError, NotImplementedError) as error:  # an operation that the counter does not support
        return f"the operations could not be counted: {type(error).__name__}: {str(error).splitlines()[0]}"
    return int(counter.get_total_flops()) or "the counter knows none of the model's operations"


def token_length(batch: Any) -> int:
    """Tokens per row of the batch's inputs; 0 if they are not token ids."""
    tokens = _token_ids(batch)
    return 0 if tokens is None else int(tokens.shape[1])


def real_tokens(batch: Any) -> int | None:
    """Number of tokens that the attention mask does not hide; None if the inputs are not token ids."""
    tokens, mask = _token_ids(batch), first_of(batch, ("attention_mask",))
    if tokens is None:
        return None
    has_mask = isinstance(mask, Tensor) and mask.shape == tokens.shape
    return int((mask != 0).sum()) if has_mask else tokens.numel()


def _token_ids(batch: Any) -> Tensor | None:
    """The integers in two dimensions that the model reads."""
    inputs = first_of(batch, MODEL_INPUTS)
    inputs = first_tensor(batch) if inputs is None else inputs
    if not isinstance(inputs, Tensor) or inputs.ndim != 2 or inputs.is_floating_point() or inputs.dtype == torch.bool:
        return None
    return inputs


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
    mask = first_of(batch, ("attention_mask",))
    on_the_left = isinstance(mask, Tensor) and mask.ndim == 2 and int(mask[:, 0].sum()) < int(mask[:, -1].sum())
    rows = torch.arange(examples) % size
    columns = (max(tokens - length, 0) if on_the_left else 0) + torch.arange(length) % max(tokens, 1)

    def change(leaf: Any) -> Any:
        if not is_per_example(leaf, size):
            return leaf
        chosen = leaf[rows.to(leaf.device)]
        if length not in (0, tokens) and leaf.ndim > 1 and leaf.shape[1] == tokens:
            chosen = chosen[:, columns.to(leaf.device)]
        return chosen

    return map_leaves(batch, change)
