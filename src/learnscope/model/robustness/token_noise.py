"""Batches with tokens removed, masked or replaced at random, and inputs with entries dropped or noise added.

What the model predicts afterwards:

- Removed tokens are gone: sequences are shorter, positions are renumbered, and everything with one entry per token
  (labels, token types) loses the same entries. A causal language model predicts each remaining token from the remaining
  ones before it. Targets that the data has already shifted (`(tokens, next_tokens)`) stay with their token: the target
  is the token that followed it in the whole text.
- Masked and replaced tokens change the inputs only. Labels and positions stay: a causal language model has to predict
  the original next tokens, also those that were replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.data import DataError
from learnscope.model.features.pooling import is_encoder_decoder
from learnscope.model.robustness.target import real_tokens_of, token_ids
from learnscope.model.robustness.token_units import special_tokens
from learnscope.task import IGNORE, Task, describe, unwrap
from learnscope.task.batches import map_leaves
from learnscope.task.huggingface import LABEL_KEYS
from learnscope.tensor.context import arithmetic_dtype

LEAST = 2
"""Minimum number of tokens of a sequence: a language model predicts the second from the first."""


@dataclass(frozen=True, slots=True)
class Perturbed:
    """A changed batch, and how many of its real tokens (or entries) were changed."""

    batch: Any
    changed: int
    of: int


def drop_tokens(
    model: nn.Module, task: Task, batch: Any, share: float, generator: torch.Generator, tokenizer: Any = None
) -> Perturbed:
    """The batch without a share of each sequence's tokens, at random positions; padded again if lengths differ.

    Special tokens and padding are never removed, and two tokens remain. Without an `attention_mask` there can be no
    padding, so every sequence loses the same number of tokens: the smallest of their numbers.
    """
    tokens, real, may_go = _tokens(model, task, batch, tokenizer)
    masked = isinstance(batch, Mapping) and isinstance(batch.get("attention_mask"), Tensor)
    counts = _counts(share, may_go, real, LEAST)
    counts = counts if masked else [min(counts)] * len(counts)
    keep = (real if masked else torch.ones_like(real)) & ~_chosen(may_go, counts, generator)
    places, filled = _places(keep, left=masked and bool((~real[:, 0]).any()))
    # at positions that the mask hides: the padding token, or an id of the batch, which is always valid
    config = getattr(unwrap(model), "config", None)
    candidates = [getattr(owner, "pad_token_id", None) for owner in (tokenizer, config)]
    rows = getattr(config, "vocab_size", None) or torch.inf
    valid = [token for token in candidates if isinstance(token, int) and 0 <= token < rows]
    padding = valid[0] if valid else int(tokens.flatten()[0])
    # what belongs to a decoder, even if it has as many entries as the input has tokens
    decoder_keys = (*LABEL_KEYS, "decoder_input_ids", "decoder_attention_mask") if is_encoder_decoder(model) else ()

    def shortened(key: str | None, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.shape[:2] != tokens.shape or key in decoder_keys:
            return leaf
        if key in LABEL_KEYS and leaf.is_floating_point():  # yes/no answers, by chance as many as tokens
            return leaf
        if key == "position_ids":  # renumbered: the remaining tokens of a row get the first of its positions
            positions = leaf.gather(1, (~real).long().argsort(dim=1, stable=True))
            return positions.gather(1, (filled.long().cumsum(1) - 1).clamp(min=0)).masked_fill(~filled, 0)
        index = places.view(*places.shape, *[1] * (leaf.ndim - 2)).expand(*places.shape, *leaf.shape[2:])
        filler = IGNORE if key in LABEL_KEYS else padding if leaf is tokens else 0  # labels may be the ids themselves
        return leaf.gather(1, index).masked_fill(~filled.view(*filled.shape, *[1] * (leaf.ndim - 2)), filler)

    return Perturbed(_by_key(batch, shortened), sum(counts), int(real.sum()))


def mask_tokens(
    model: nn.Module, task: Task, batch: Any, share: float, generator: torch.Generator, tokenizer: Any = None
) -> Perturbed:
    """The batch with a share of each sequence's tokens replaced by the tokenizer's mask token."""
    mask = getattr(tokenizer, "mask_token_id", None)
    if mask is None:
        raise ValueError(
            "dropout='mask': the tokenizer has no mask token, and no other token stands for a hidden one; "
            "use dropout='remove', which takes tokens away"
        )
    tokens, real, may_go = _tokens(model, task, batch, tokenizer)
    chosen = _chosen(may_go, _counts(share, may_go, real), generator)
    return Perturbed(with_tokens(batch, tokens, tokens.masked_fill(chosen, mask)), int(chosen.sum()), int(real.sum()))


def substitute_tokens(
    model: nn.Module, task: Task, batch: Any, share: float, generator: torch.Generator, tokenizer: Any,
    vocabulary: Tensor,
) -> Perturbed:  # fmt: skip
    """The batch with a share of each sequence's tokens replaced by other ones, drawn uniformly from `vocabulary`."""
    if len(vocabulary) < 2:
        raise ValueError(f"a vocabulary of {len(vocabulary)} tokens has none to replace a token by")
    tokens, real, may_go = _tokens(model, task, batch, tokenizer)
    chosen = _chosen(may_go, _counts(share, may_go, real), generator)
    old = tokens[chosen].cpu().long()
    place = torch.searchsorted(vocabulary, old).clamp(max=len(vocabulary) - 1)
    listed = vocabulary[place] == old
    # drawn among the other tokens: indices from the token's own position on are shifted by one
    drawn = (torch.rand(len(old), generator=generator, dtype=torch.float64) * (len(vocabulary) - listed.long())).long()
    new = tokens.clone()
    new[chosen] = vocabulary[drawn + (listed & (drawn >= place)).long()].to(tokens)
    return Perturbed(with_tokens(batch, tokens, new), int(chosen.sum()), int(real.sum()))


def drop_entries(origin: Tensor, share: float, mean: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
    """Inputs with each entry replaced by the data's mean with this probability, and how many were."""
    dropped = (torch.rand(origin.shape, generator=generator, dtype=torch.float64) < share).to(origin.device)
    return torch.where(dropped, mean.to(origin), origin), int(dropped.sum())


def add_noise(origin: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Inputs with N(0, (level·rms of the example)²) added to every entry."""
    wide = origin.to(arithmetic_dtype(origin))
    rms = wide.reshape(len(wide), -1).square().mean(1).sqrt().view(-1, *[1] * (wide.ndim - 1))
    drawn = torch.randn(wide.shape, generator=generator, dtype=wide.dtype).to(wide.device)
    return (wide + drawn * (level * rms)).to(origin.dtype)


def _tokens(model: nn.Module, task: Task, batch: Any, tokenizer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, the mask of those that are not padding, and the mask of those that may be changed."""
    tokens = token_ids(batch, task)
    if tokens is None:
        raise DataError(f"there are no token ids in {describe(batch)}: a matrix of whole numbers, examples first")
    real = real_tokens_of(batch, tokens)
    special = torch.tensor(sorted(special_tokens(model, tokenizer)), dtype=tokens.dtype, device=tokens.device)
    return tokens, real, real & ~torch.isin(tokens, special)


def _counts(share: float, allowed: Tensor, real: Tensor, least: int = 0) -> list[int]:
    """How many tokens of each sequence to change: the share rounded, at least one if it is above 0; `least` stay."""
    pairs = zip(allowed.sum(1).tolist(), real.sum(1).tolist(), strict=True)
    return [max(0, min(max(1, round(share * n)) if share > 0 else 0, n, total - least)) for n, total in pairs]


def _chosen(allowed: Tensor, counts: Sequence[int], generator: torch.Generator) -> Tensor:
    """A mask of as many random tokens of each sequence, among those allowed."""
    chosen = torch.zeros_like(allowed)
    for row, count in enumerate(counts):
        places = allowed[row].nonzero().squeeze(1)
        chosen[row, places[torch.randperm(len(places), generator=generator)[:count].to(places.device)]] = True
    return chosen


def _places(keep: Tensor, left: bool) -> tuple[Tensor, Tensor]:
    """For each new column the old column, and whether it holds a token; padding stays on its side."""
    lengths = keep.sum(1)
    width = int(lengths.max())
    # a stable sort moves the kept tokens together, in order, before or after the removed ones
    order = (keep if left else ~keep).long().argsort(dim=1, stable=True)
    columns = torch.arange(width, device=keep.device)
    if left:
        return order[:, keep.shape[1] - width :], columns >= width - lengths[:, None]
    return order[:, :width], columns < lengths[:, None]


def with_tokens(batch: Any, tokens: Tensor, new: Tensor) -> Any:
    """The batch with other input tokens; if the inputs were their own labels, the original ones become the labels."""
    changed = _by_key(batch, lambda key, leaf: new if leaf is tokens and key not in LABEL_KEYS else leaf)
    if isinstance(batch, Mapping) and "input_ids" in batch and not any(key in batch for key in LABEL_KEYS):
        changed = dict(changed) | {"labels": tokens}
    return changed


def _by_key(batch: Any, change: Callable[[str | None, Any], Any]) -> Any:
    """`change(key, leaf)` for every leaf; the key is None if the batch is not a mapping."""
    if isinstance(batch, Mapping):
        return {key: map_leaves(value, partial(change, key)) for key, value in batch.items()}
    return map_leaves(batch, partial(change, None))
