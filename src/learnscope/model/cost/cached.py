"""A causal language model with a key-value cache: prefill of a text, and decoding one more token."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.task import HuggingFaceTask, Task, unwrap
from learnscope.task.huggingface import is_causal


class NoCache(ValueError):
    """The model does not use its cache as expected; the message says what was seen."""


def decodes(model: nn.Module, task: Task) -> bool:
    """Whether this is a causal language model of transformers that accepts and returns a cache."""
    inner = unwrap(model)
    if not isinstance(task, HuggingFaceTask) or getattr(inner, "config", None) is None:
        return False
    if not {"past_key_values", "use_cache"} <= inspect.signature(inner.forward).parameters.keys():
        return False
    try:
        return is_causal(inner)
    except TypeError:  # an unknown class: HuggingFaceTask(shift=...) tells
        return bool(task.shift)


def longest(model: nn.Module) -> int | None:
    """The model's number of positions, if its configuration tells."""
    config: Any = getattr(unwrap(model), "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(config, "max_position_embeddings", None)
    return int(positions) if positions else None


def prefill(model: nn.Module, ids: Tensor, mask: Tensor | None) -> Callable[[], Any]:
    """Read the whole text into a new cache; logits only for the last position, if the model supports that."""
    inner: Any = unwrap(model)
    arguments: dict[str, Any] = {"input_ids": ids, "use_cache": True, **_masked(mask)}
    if "logits_to_keep" in inspect.signature(inner.forward).parameters:
        arguments["logits_to_keep"] = 1
    return lambda: model(**arguments, past_key_values=_new_cache(inner))


def decode(model: nn.Module, ids: Tensor, mask: Tensor | None) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A call that decodes one more token, and one that removes it: the cache must not grow from pass to pass."""
    cache = _new_cache(unwrap(model))
    arguments: dict[str, Any] = {"use_cache": True, "past_key_values": cache}
    model(input_ids=ids, **arguments, **_masked(mask))
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


def _masked(mask: Tensor | None) -> dict[str, Tensor]:
    return {} if mask is None else {"attention_mask": mask}


def _new_cache(model: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.config)
