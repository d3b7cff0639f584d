"""Sequences that a causal language model makes up itself, token by token."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import model_device
from learnscope.task import unwrap
from learnscope.task.huggingface import is_causal
from learnscope.task.shapes import logits_in

ROWS = 64
"""Sequences that grow together: always as many, since that decides which draw belongs to which sequence."""


class CannotSample(ValueError):
    """Why nothing can be drawn from this model."""


def check_can_sample(model: nn.Module) -> None:
    """Refuse a model that does not predict the next token."""
    inner = unwrap(model)
    try:
        causal = is_causal(inner)
    except TypeError as error:
        raise CannotSample(str(error)) from error
    if not causal:
        raise CannotSample(f"{type(inner).__name__} does not predict the next token")


@torch.no_grad()
def own_samples(
    model: nn.Module, *, vocabulary: int, count: int, length: int, seed: int,
    show: Callable[[int, int], None] | None = None,
) -> Tensor:  # fmt: skip
    """`count` sequences of `length` tokens from the model's own distribution, [count, length] on the CPU.

    Ancestral sampling: x_t ~ softmax(logits(x_<t)), at temperature 1 and from the whole vocabulary. The first token is
    the configuration's beginning of a text if it has one, else drawn evenly; no prediction is made of it. A sequence
    goes on after a token that ends a text, as in training on texts one after the other. All draws are from a generator
    of their own, and the model is as before.
    """
    check_can_sample(model)
    generator = torch.Generator().manual_seed(seed)
    parts = []
    with guard(model):
        for start in range(0, count, ROWS):
            rows = min(ROWS, count - start)
            ids = _first_tokens(model, vocabulary, rows, generator)
            cache: Any = None
            while ids.shape[1] < length:
                logits, cache = next_logits(model, ids, cache)
                ids = torch.cat([ids, _drawn(logits[:, :vocabulary], generator)], 1)
                if show is not None:
                    show(start * length + rows * ids.shape[1], count * length)
            parts.append(ids)
    return torch.cat(parts)


def _first_tokens(model: nn.Module, vocabulary: int, rows: int, generator: torch.Generator) -> Tensor:
    begin = getattr(getattr(unwrap(model), "config", None), "bos_token_id", None)
    if isinstance(begin, int) and 0 <= begin < vocabulary:
        return torch.full((rows, 1), begin)
    return torch.randint(vocabulary, (rows, 1), generator=generator)


def next_logits(model: nn.Module, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
    """The logits of the next token, [rows, classes], and the cache of keys and values where the model has one."""
    device = model_device(model)
    accepted = inspect.signature(unwrap(model).forward).parameters
    if not {"past_key_values", "use_cache"} <= accepted.keys():
        return logits_in(model(input_ids=ids.to(device)))[:, -1], None
    given = ids if cache is None else ids[:, -1:]
    output = model(input_ids=given.to(device), past_key_values=cache, use_cache=True)
    return logits_in(output)[:, -1], getattr(output, "past_key_values", None)


def _drawn(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row, by a number drawn evenly below the sum of its probabilities: one draw for all tokens."""
    sums = logits.to(torch.promote_types(logits.dtype, torch.float32)).cpu().softmax(1).cumsum(1, dtype=torch.float64)
    if not bool(sums[:, -1].isfinite().all()):
        raise CannotSample("its outputs are not finite")
    below = torch.rand(len(sums), 1, generator=generator, dtype=torch.float64) * sums[:, -1:]
    # to the right of equal sums: a token of probability 0 is never drawn
    return torch.searchsorted(sums, below, right=True).clamp_(max=sums.shape[1] - 1)
