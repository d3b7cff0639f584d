"""The part of a batch that an attack may change: the first float input, or the embeddings of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from learnscope.model.data import DataError, is_per_example, leaves
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Task, describe, unwrap
from learnscope.task.batches import first_of, first_tensor, map_leaves
from learnscope.task.huggingface import MODEL_INPUTS

What = Literal["embeddings", "inputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A batch on the model's device, and the part of it that an attack changes.

    `origin` is [B, ...] for inputs, and [B, T, H] for embeddings: the output of the input embedding, before positions
    and norms. `free` is a boolean mask that broadcasts to it, False for padding.
    """

    batch: Any
    origin: Tensor
    free: Tensor
    tokens: Tensor | None = None
    """For embeddings: the token ids, [B, T]."""
    embedding: nn.Module | None = field(default=None, repr=False)
    leaf: Tensor | None = field(default=None, repr=False)
    """For inputs: the tensor of the batch that is replaced."""

    @contextmanager
    def added(self, delta: Tensor | None) -> Iterator[Any]:
        """The batch to run with `delta` added; None runs it as it is. Gradients flow to `delta`."""

        def add(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            # to the embeddings of these tokens only: a decoder may share the module
            return _sum(output, delta) if _same(first_tensor([args, kwargs]), self.tokens) else output

        if delta is None:
            yield self.batch
        elif self.embedding is None:
            changed = _sum(self.origin, delta)
            yield map_leaves(self.batch, lambda leaf: changed if leaf is self.leaf else leaf)
        else:
            handle = self.embedding.register_forward_hook(add, with_kwargs=True)
            try:
                yield self.batch
            finally:
                handle.remove()


def attack_target(task: Task, batch: Any) -> What:
    """Whether an attack changes float inputs or the embeddings of token ids; the model is not needed for this."""
    # a causal language model's batch without labels is its own target
    if task.targets(batch) is None and not (isinstance(batch, Mapping) and "input_ids" in batch):
        raise DataError(
            f"an attack raises the loss, which needs targets, and {describe(batch)} has none for {type(task).__name__}"
        )
    return "embeddings" if _float_input(batch, task) is None else "inputs"


def find_target(model: nn.Module, task: Task, batch: Any) -> Target:
    """The target of an attack on this batch. For token ids the model runs once, to find the module that embeds them."""
    batch = task.to(batch, model_device(model))
    attack_target(task, batch)  # refuses a batch without targets
    leaf = _float_input(batch, task)
    if leaf is not None:
        return Target(batch=batch, origin=leaf.detach(), free=torch.ones_like(leaf, dtype=torch.bool), leaf=leaf)
    embedding, tokens, origin = _embedded(model, task, batch)
    padding = getattr(embedding, "padding_idx", None)
    free = real_tokens_of(batch, tokens, padding if isinstance(padding, int) else None)
    return Target(batch=batch, origin=origin, free=free[..., None], tokens=tokens, embedding=embedding)


def token_ids(batch: Any, task: Task) -> Tensor | None:
    """The batch's own token ids, [B, T]: `input_ids`, or the first integer matrix that is not the targets."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if isinstance(ids, Tensor):
        return ids
    targets = task.targets(batch)
    matrices = [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim == 2 and leaf is not targets]
    return next((leaf for leaf in matrices if not leaf.is_floating_point() and leaf.dtype != torch.bool), None)


def real_tokens_of(batch: Any, tokens: Tensor, padding: int | None = None) -> Tensor:
    """A boolean mask of the tokens that are not padding: `attention_mask`, or all but the embedding's padding index."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        return mask.bool()
    if isinstance(mask, Tensor):
        raise DataError(
            f"an attention_mask of shape {list(mask.shape)} does not say which of the tokens, {list(tokens.shape)}, "
            "are padding: give one of the tokens' shape"
        )
    return torch.ones_like(tokens, dtype=torch.bool) if padding is None else tokens != padding


def _float_input(batch: Any, task: Task) -> Tensor | None:
    if isinstance(batch, Mapping):
        if isinstance(batch.get("input_ids"), Tensor):
            return None
        declared = first_of(batch, [key for key in MODEL_INPUTS if key != "input_ids"])
        if isinstance(declared, Tensor) and declared.is_floating_point():
            return declared
    targets = task.targets(batch)
    tensors = [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim and leaf is not targets]
    return next((leaf for leaf in tensors if leaf.is_floating_point()), None)


class _Found(BaseException):
    """Ends a pass whose rest is not needed; not an error, which a model might catch."""


@torch.no_grad()
def _embedded(model: nn.Module, task: Task, batch: Any) -> tuple[nn.Module, Tensor, Tensor]:
    """The module that embeds the batch's token ids, the ids, and their embeddings."""
    declared: Any = None
    with suppress(AttributeError, NotImplementedError):  # no such method, or a model that does not say
        declared = unwrap(model).get_input_embeddings()  # type: ignore[operator]
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    size = task.size(batch)
    inputs = [leaf for leaf in leaves(batch) if is_per_example(leaf, size) and not leaf.is_floating_point()]

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        ids = first_tensor([args, kwargs])
        if ids is not None and isinstance(output, Tensor) and output.shape[:-1] == ids.shape and ids.ndim == 2:
            calls.append((module, ids, output.detach().clone()))
            if module is declared and any(_same(ids, leaf) for leaf in inputs):
                raise _Found  # it is what is looked for, whatever else is called in this pass

    with guard(model), suppress(_Found):  # the guard removes the hooks
        # all embeddings, not only the declared one: T5's encoder has a second one with the same table
        for module in model.modules():
            if isinstance(module, nn.Embedding) or module is declared:
                module.register_forward_hook(keep, with_kwargs=True)
        task.positions(model, batch)
    matching = [call for call in calls if any(_same(call[1], leaf) for leaf in inputs)]
    if not matching:
        raise DataError(
            f"there is nothing to attack in {describe(batch)}: it has no float input, and no embedding of "
            f"{type(unwrap(model)).__name__} was called with its token ids. Give batches of floats, or a model whose "
            "tokens go through an nn.Embedding"
        )
    # the batch may also have token types and positions, whose embeddings have fewer rows than the vocabulary
    return max(matching, key=lambda call: (call[0] is declared, table_rows(call[0])))


def table_rows(embedding: nn.Module) -> int:
    """Number of ids that the embedding has a row for; 0 if it does not tell."""
    rows = getattr(embedding, "num_embeddings", None)
    if isinstance(rows, int):
        return rows
    weight = getattr(embedding, "weight", None)
    return int(weight.shape[0]) if isinstance(weight, Tensor) and weight.ndim == 2 else 0


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and bool((a == b).all())


def _sum(origin: Tensor, delta: Tensor | None) -> Tensor:
    """Added in the wider of both dtypes and rounded to the origin's: in bfloat16 a small step would be lost."""
    assert delta is not None
    return (origin.to(torch.promote_types(origin.dtype, delta.dtype)) + delta).to(origin.dtype)
