"""Calls of a model that are timed: as its task makes them, for batches of other sizes, and with a key-value cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from learnscope.model.data import is_per_example
from learnscope.task import HuggingFaceTask, Task, unwrap
from learnscope.task.batches import first_of, first_tensor, map_leaves
from learnscope.task.huggingface import MODEL_INPUTS, is_causal


class Call(NamedTuple):
    """One call of a model, and its logits. `kwargs` is None if the task calls the model several times or not at all."""

    run: Callable[[], Any]
    logits: Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None


def call_of(model: nn.Module, task: Task, batch: Any, read: Callable[[nn.Module, Any], Tensor] | None = None) -> Call:
    """How `task` calls `model` for `batch`, observed in one pass; for use under the guard. `read` is another way to the
    logits than `task.logits`."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    handle = model.register_forward_pre_hook(keep, with_kwargs=True, prepend=True)
    try:
        logits = (read or task.logits)(model, batch)
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
    return int(counter.get_total_flops()) or "the counter supports none of the model's operations"


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
        raise ValueError(f"{type(task).__name__} has its own take(), which cannot resize a batch")
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


class Calls:
    """How the model is called for batches of each size, and the operations of each call, from one pass per size."""

    def __init__(self, model: nn.Module, task: Task, batch: Any) -> None:
        self.model, self.task, self.batch = model, task, batch
        self.size, self.tokens = task.size(batch), token_length(batch)
        self._calls: dict[tuple[int, int], tuple[Call, int | str]] = {}
        self.output_bytes = 0
        self.of(self.size, self.tokens)

    def of(self, size: int, length: int) -> tuple[Call, int | str, Any]:
        """The call, its operations, and the batch; of the outputs only the size of the first is kept."""
        batch = resized(self.task, self.batch, size, length)
        if (size, length) not in self._calls:
            if type(self.task).logits is HuggingFaceTask.logits:
                calls: list[Call] = []
                flops = counted_flops(lambda: calls.append(call_of(self.model, self.task, batch)))
                call = calls[0] if calls else call_of(self.model, self.task, batch)
            else:  # the task may do matrix products of its own
                call = call_of(self.model, self.task, batch)
                flops = counted_flops(call.run)
            self.output_bytes = self.output_bytes or call.logits.nbytes
            self._calls[size, length] = call._replace(logits=call.logits.new_empty(0)), flops
        return *self._calls[size, length], batch

    def text(self, size: int, length: int) -> tuple[Tensor, Tensor | None]:
        """Token ids and mask of so many examples, as the task gives them to the model; nothing is run for them."""
        arguments = self._calls[self.size, self.tokens][0].kwargs or {}
        if "input_ids" not in arguments:
            raise ValueError("the task does not give the model input_ids, which a cache is made from")
        given = {name: arguments[name] for name in ("input_ids", "attention_mask") if arguments.get(name) is not None}
        changed = resized(HuggingFaceTask(), given, size, length)
        return changed["input_ids"], changed.get("attention_mask")


class NoCache(ValueError):
    """The model does not use its cache as expected; the message says what was seen."""


def can_decode(model: nn.Module, task: Task) -> bool:
    """Whether this is a causal language model of transformers that accepts and returns a cache."""
    inner = unwrap(model)
    if not isinstance(task, HuggingFaceTask) or getattr(inner, "config", None) is None:
        return False
    if not {"past_key_values", "use_cache"} <= inspect.signature(inner.forward).parameters.keys():
        return False
    try:
        return is_causal(inner)
    except TypeError:  # an unknown class: HuggingFaceTask(shift=...) decides
        return bool(task.shift)


def max_positions(model: nn.Module) -> int | None:
    """The model's number of positions, if its configuration has it."""
    config: Any = getattr(unwrap(model), "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(config, "max_position_embeddings", None)
    return int(positions) if positions else None


LARGEST_OUTPUT = 1 << 30
"""Settings other than the data's own are skipped if their logits take more than this many bytes."""
NO_TOKENS = "the inputs are no token ids"


def impossible(calls: Calls, phase: str, size: int, length: int) -> str | None:
    """Why this many examples of this length cannot be run in this phase; None if nothing is known against it."""
    if length and not calls.tokens:
        return f"{NO_TOKENS}: they have no length to be changed"
    needed, most = length + (phase == "decode"), max_positions(calls.model)
    if most is not None and needed > most:
        return f"{needed} tokens are more than the model's {most} positions"
    bytes_now = calls.output_bytes * size * (length or 1) / max(1, calls.size * (calls.tokens or 1))
    if phase == "forward" and (size, length) != (calls.size, calls.tokens) and bytes_now > LARGEST_OUTPUT:
        return f"its outputs alone would take {bytes_now / 2**30:.3g} GiB, more than {LARGEST_OUTPUT / 2**30:g}"
    return None


def prefill(model: nn.Module, ids: Tensor, mask: Tensor | None) -> Callable[[], Any]:
    """Read the whole text into a new cache; logits only for the last position, if the model supports that."""
    inner: Any = unwrap(model)
    arguments: dict[str, Any] = {"input_ids": ids, "use_cache": True, **_masked(mask), **last_only(inner)}
    return lambda: model(**arguments, past_key_values=new_cache(inner))


def decode(model: nn.Module, ids: Tensor, mask: Tensor | None) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A call that decodes one more token, and one that removes it: the cache must not grow from pass to pass."""
    cache = new_cache(unwrap(model))
    arguments: dict[str, Any] = {"use_cache": True, "past_key_values": cache}
    model(input_ids=ids, **arguments, **_masked(mask), **last_only(unwrap(model)))
    # a layer of the cache replaces its tensors by longer ones and does not write into them: references are enough
    before = [dict(vars(layer)) for layer in cache.layers]
    length = ids.shape[1]
    longer = None if mask is None else torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    arguments |= {"input_ids": ids[:, -1:].clone(), **_masked(longer)}

    def forget() -> None:
        for layer, state in zip(cache.layers, before, strict=True):
            vars(layer).update(state)

    if cache.get_seq_length() != length:
        raise NoCache(f"after {length} tokens the cache holds {cache.get_seq_length()}")
    model(**arguments)
    if cache.get_seq_length() != length + 1:
        raise NoCache(f"after one more token the cache holds {cache.get_seq_length()}, not {length + 1}")
    forget()
    return lambda: model(**arguments), forget


def last_only(model: Any) -> dict[str, int]:
    """What makes the model give logits for the last position only, if it supports that."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def _masked(mask: Tensor | None) -> dict[str, Tensor]:
    return {} if mask is None else {"attention_mask": mask}


def new_cache(model: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.config)
