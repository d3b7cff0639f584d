"""What of a batch an attack may change: the first float input, or the embeddings of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from learnscope.model.batches import is_per_example, leaves
from learnscope.model.data import DataError
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import Task, describe, unwrap
from learnscope.task.batches import first_of, map_leaves
from learnscope.task.huggingface import MODEL_INPUTS

What = Literal["embeddings", "inputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A batch on the model's device, and the part of it that an attack adds to.

    `origin` is [B, ...] for inputs, and for embeddings [B, T, H]: what the input embedding returned, before positions
    and norms. `free` are booleans that broadcast to it, False for padding.
    """

    what: What
    batch: Any
    origin: Tensor
    free: Tensor
    tokens: Tensor | None = None
    """Token ids, [B, T], of embeddings."""
    embedding: nn.Module | None = field(default=None, repr=False)
    leaf: Tensor | None = field(default=None, repr=False)
    """The tensor of the batch that is replaced, of inputs."""

    @contextmanager
    def added(self, delta: Tensor | None) -> Iterator[Any]:
        """The batch to run with `delta` added; None runs it as it is. Gradients flow to `delta`."""
        if delta is None:
            yield self.batch
        elif self.embedding is None:
            changed = _sum(self.origin, delta)
            yield map_leaves(self.batch, lambda one: changed if one is self.leaf else one)
        else:
            handle = self.embedding.register_forward_hook(_Adding(self.tokens, delta), with_kwargs=True)
            try:
                yield self.batch
            finally:
                handle.remove()


class _Adding:
    """Forward hook: adds to the embeddings of these tokens, and to no others (a decoder may share the module)."""

    def __init__(self, tokens: Tensor | None, delta: Tensor) -> None:
        self.tokens, self.delta = tokens, delta

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        given = _first_tensor(args, kwargs)
        if given is None or not _same(given, self.tokens):
            return output
        return _sum(output, self.delta)


def what_is_attacked(task: Task, batch: Any) -> What:
    """Inputs where the batch has float ones, embeddings where it has token ids; read off the batch alone."""
    if _targets_missing(task, batch):
        raise DataError(
            f"an attack raises the loss, which needs targets, and {describe(batch)} has none for {type(task).__name__}"
        )
    return "embeddings" if _float_input(batch, task) is None else "inputs"


def find_target(model: nn.Module, task: Task, batch: Any) -> Target:
    """What an attack on this batch changes. For token ids the model runs once, to see what embeds them."""
    batch = task.to(batch, model_device(model))
    if what_is_attacked(task, batch) == "inputs":
        leaf = _float_input(batch, task)
        assert leaf is not None
        free = torch.ones_like(leaf, dtype=torch.bool)
        return Target(what="inputs", batch=batch, origin=leaf.detach(), free=free, leaf=leaf)
    embedding, tokens, origin = _embedded(model, task, batch)
    free = _real(batch, embedding, tokens)
    return Target(
        what="embeddings", batch=batch, origin=origin, free=free[..., None], tokens=tokens, embedding=embedding
    )


def token_ids(batch: Any, task: Task) -> Tensor | None:
    """The batch's own token ids, [B, T]: `input_ids`, or the first matrix of whole numbers that is no target."""
    named = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if isinstance(named, Tensor):
        return named
    targets = task.targets(batch)
    found = [leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim == 2 and leaf is not targets]
    return next((leaf for leaf in found if not leaf.is_floating_point() and leaf.dtype != torch.bool), None)


def real_tokens_of(batch: Any, tokens: Tensor, padding: int | None = None) -> Tensor:
    """Which tokens are no padding, as booleans: `attention_mask`, or all but the embedding's own padding index."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        return mask.bool()
    if isinstance(mask, Tensor):
        raise DataError(
            f"an attention_mask of shape {list(mask.shape)} does not say which of the tokens, {list(tokens.shape)}, "
            "are padding: give one of the tokens' shape"
        )
    return torch.ones_like(tokens, dtype=torch.bool) if padding is None else tokens != padding


def _real(batch: Any, embedding: nn.Module, tokens: Tensor) -> Tensor:
    padding = getattr(embedding, "padding_idx", None)
    return real_tokens_of(batch, tokens, padding if isinstance(padding, int) else None)


def _targets_missing(task: Task, batch: Any) -> bool:
    # a causal language model's batch without labels is its own target
    own = isinstance(batch, Mapping) and "input_ids" in batch
    return task.targets(batch) is None and not own


def _float_input(batch: Any, task: Task) -> Tensor | None:
    if isinstance(batch, Mapping):
        if isinstance(batch.get("input_ids"), Tensor):
            return None
        known = first_of(batch, [key for key in MODEL_INPUTS if key != "input_ids"])
        if isinstance(known, Tensor) and known.is_floating_point():
            return known
    targets = task.targets(batch)
    for leaf in leaves(batch):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim and leaf is not targets:
            return leaf
    return None


@torch.no_grad()
def _embedded(model: nn.Module, task: Task, batch: Any) -> tuple[nn.Module, Tensor, Tensor]:
    """The module that embeds the batch's token ids, these ids, and what it returned for them."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = _first_tensor(args, kwargs)
        if given is not None and isinstance(output, Tensor) and output.shape[:-1] == given.shape and given.ndim == 2:
            calls.append((module, given, output.detach().clone()))

    with guard(model):  # hooks go when the guard goes
        for module in _candidates(model):
            module.register_forward_hook(note, with_kwargs=True)
        task.positions(model, batch)
    size = task.size(batch)
    own = [leaf for leaf in leaves(batch) if is_per_example(leaf, size) and not leaf.is_floating_point()]
    found = [call for call in calls if any(_same(call[1], leaf) for leaf in own)]
    if not found:
        raise DataError(
            f"there is nothing to attack in {describe(batch)}: it has no float input, and no embedding of "
            f"{type(unwrap(model)).__name__} was called with its token ids. Give batches of floats, or a model whose "
            "tokens go through an nn.Embedding"
        )
    named = _named_embedding(model)
    # token types and positions may be in the batch too, and have fewer rows than the vocabulary
    return max(found, key=lambda call: (call[0] is named, table_rows(call[0])))


def table_rows(embedding: nn.Module) -> int:
    """How many ids the embedding knows."""
    rows = getattr(embedding, "num_embeddings", None)
    if isinstance(rows, int):
        return rows
    weight = getattr(embedding, "weight", None)
    return int(weight.shape[0]) if isinstance(weight, Tensor) and weight.ndim == 2 else 0


def _candidates(model: nn.Module) -> list[nn.Module]:
    """The module that the model says embeds its inputs, and all embeddings: T5's encoder has another with its table."""
    named = _named_embedding(model)
    found: list[nn.Module] = [] if named is None else [named]
    return found + [module for module in model.modules() if isinstance(module, nn.Embedding) and module is not named]


def _named_embedding(model: nn.Module) -> nn.Module | None:
    try:
        named = unwrap(model).get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):  # no such method, or a model that does not say
        return None
    return named if isinstance(named, nn.Module) else None


def _first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    return next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and bool((a == b).all())


def _sum(origin: Tensor, delta: Tensor) -> Tensor:
    """In the wider of both dtypes, rounded to the origin's: a step in bfloat16 would be lost before it is added."""
    return (origin.to(torch.promote_types(origin.dtype, delta.dtype)) + delta).to(origin.dtype)
