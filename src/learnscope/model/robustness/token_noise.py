"""Batches with tokens removed, masked or replaced at random, and inputs with entries dropped or noise added.

What is predicted afterwards:

- Removed tokens are gone: sequences are shorter, positions are counted anew, and everything that has an entry a token
  (labels, token types) loses the same entries. A causal language model predicts each remaining token from the remaining
  ones before it. Targets that the data had shifted already (`(tokens, next_tokens)`) stay with their token: what is
  predicted from it is the token that followed it in the whole text.
- Masked and replaced tokens change the inputs only. Labels are the original ones at unchanged positions: a causal
  language model is asked for the original next tokens, also for those that were replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.data import DataError
from learnscope.model.robustness.target import real_tokens_of, token_ids
from learnscope.model.robustness.token_units import special_tokens
from learnscope.task import IGNORE, Task, describe, unwrap
from learnscope.task.batches import map_leaves
from learnscope.task.huggingface import LABEL_KEYS

LEAST = 2
"""Tokens that a sequence keeps at least: a language model predicts from one the other."""


@dataclass(frozen=True, slots=True)
class Perturbed:
    """A batch that was changed, and how many of its real tokens (or entries) were."""

    batch: Any
    changed: int
    of: int


def drop_tokens(
    model: nn.Module, task: Task, batch: Any, share: float, generator: torch.Generator, tokenizer: Any = None
) -> Perturbed:
    """The batch without a share of each sequence's tokens, at random places; padded anew where lengths differ.

    Special tokens and padding are never chosen, and two tokens remain. Without an `attention_mask` there can be no
    padding: every sequence then loses as many tokens as the one with fewest to lose.
    """
    tokens, real, may_go = _tokens(model, task, batch, tokenizer)
    masked = isinstance(batch, Mapping) and isinstance(batch.get("attention_mask"), Tensor)
    counts = [_count(share, int(row.sum()), int(there.sum())) for row, there in zip(may_go, real, strict=True)]
    counts = counts if masked else [min(counts)] * len(counts)
    keep = real.clone() if masked else torch.ones_like(real)
    for row, count in enumerate(counts):
        keep[row, _chosen(may_go[row], count, generator)] = False
    left = bool((~real[:, 0]).any()) if masked else False
    places, filled = _places(keep, left)
    padding = _padding(model, tokenizer, tokens)
    whole = _not_by_token(model)

    def shortened(key: str | None, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.shape[:2] != tokens.shape or key in whole:
            return leaf
        if key in LABEL_KEYS and leaf.is_floating_point():  # yes/no answers, as many as there are tokens by chance
            return leaf
        if key == "position_ids":  # counted anew: a row's remaining tokens have the first of its own positions
            own = leaf.gather(1, (~real).long().argsort(dim=1, stable=True))
            return own.gather(1, (filled.long().cumsum(1) - 1).clamp(min=0)).masked_fill(~filled, 0)
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
    chosen = _rows_chosen(may_go, real, share, generator, least=0)
    return Perturbed(with_tokens(batch, tokens, tokens.masked_fill(chosen, mask)), int(chosen.sum()), int(real.sum()))


def substitute_tokens(
    model: nn.Module, task: Task, batch: Any, share: float, generator: torch.Generator, tokenizer: Any,
    vocabulary: Tensor,
) -> Perturbed:  # fmt: skip
    """The batch with a share of each sequence's tokens replaced by others, drawn evenly from `vocabulary`.

    The vocabulary is that of real tokens (`real_tokens`), and a token is never replaced by itself.
    """
    if len(vocabulary) < 2:
        raise ValueError(f"a vocabulary of {len(vocabulary)} tokens has none to replace a token by")
    tokens, real, may_go = _tokens(model, task, batch, tokenizer)
    chosen = _rows_chosen(may_go, real, share, generator, least=0)
    old = tokens[chosen].cpu().long()
    place = torch.searchsorted(vocabulary, old).clamp(max=len(vocabulary) - 1)
    inside = vocabulary[place] == old
    # of the others: as many as there are, and those from the token's own place on move up by one
    drawn = (torch.rand(len(old), generator=generator, dtype=torch.float64) * (len(vocabulary) - inside.long())).long()
    new = tokens.clone()
    new[chosen] = vocabulary[drawn + (inside & (drawn >= place)).long()].to(tokens)
    return Perturbed(with_tokens(batch, tokens, new), int(chosen.sum()), int(real.sum()))


def drop_entries(origin: Tensor, share: float, mean: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
    """Inputs with each entry set to the data's mean with this probability, and how many were."""
    dropped = (torch.rand(origin.shape, generator=generator, dtype=torch.float64) < share).to(origin.device)
    return torch.where(dropped, mean.to(origin), origin), int(dropped.sum())


def add_noise(origin: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Inputs with N(0, (level·rms of the example)²) added to every entry."""
    wide = origin.double() if origin.dtype is torch.float64 else origin.float()
    rms = wide.reshape(len(wide), -1).square().mean(1).sqrt().view(-1, *[1] * (wide.ndim - 1))
    drawn = torch.randn(wide.shape, generator=generator, dtype=wide.dtype).to(wide.device)
    return (wide + drawn * (level * rms)).to(origin.dtype)


def _tokens(model: nn.Module, task: Task, batch: Any, tokenizer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, which of them are no padding, and which of these may be changed."""
    tokens = token_ids(batch, task)
    if tokens is None:
        raise DataError(f"there are no token ids in {describe(batch)}: a matrix of whole numbers, examples first")
    real = real_tokens_of(batch, tokens)
    special = torch.tensor(sorted(special_tokens(model, tokenizer)), dtype=tokens.dtype, device=tokens.device)
    return tokens, real, real & ~torch.isin(tokens, special)


def _count(share: float, droppable: int, real: int, least: int = LEAST) -> int:
    """How many of a sequence: the nearest whole number to its share, one at least if the share is above 0."""
    wanted = max(1, round(share * droppable)) if share > 0 else 0
    return max(0, min(wanted, droppable, real - least))


def _chosen(allowed: Tensor, count: int, generator: torch.Generator) -> Tensor:
    places = allowed.nonzero().squeeze(1)
    return places[torch.randperm(len(places), generator=generator)[:count].to(places.device)]


def _rows_chosen(may_go: Tensor, real: Tensor, share: float, generator: torch.Generator, *, least: int) -> Tensor:
    chosen = torch.zeros_like(may_go)
    for row, (allowed, there) in enumerate(zip(may_go, real, strict=True)):
        count = _count(share, int(allowed.sum()), int(there.sum()), least)
        chosen[row, _chosen(allowed, count, generator)] = True
    return chosen


def _places(keep: Tensor, left: bool) -> tuple[Tensor, Tensor]:
    """For each new column the old one that it comes from, and whether it holds a token; padding on its own side."""
    lengths = keep.sum(1)
    width = int(lengths.max())
    # a stable sort brings what is kept together in its order, before or behind what goes
    order = (keep if left else ~keep).long().argsort(dim=1, stable=True)
    columns = torch.arange(width, device=keep.device)
    if left:
        return order[:, keep.shape[1] - width :], columns >= width - lengths[:, None]
    return order[:, :width], columns < lengths[:, None]


def _not_by_token(model: nn.Module) -> tuple[str, ...]:
    """Keys whose entries are no tokens of the input, even where there are as many: what a decoder reads and writes."""
    decoder = bool(getattr(getattr(unwrap(model), "config", None), "is_encoder_decoder", False))
    return (*LABEL_KEYS, "decoder_input_ids", "decoder_attention_mask") if decoder else ()


def _padding(model: nn.Module, tokenizer: Any, tokens: Tensor) -> int:
    """What fills a place that the mask hides: the padding token, or an id of the batch, which the model knows."""
    config = getattr(unwrap(model), "config", None)
    rows = getattr(config, "vocab_size", None)
    candidates = [getattr(tokenizer, "pad_token_id", None), getattr(config, "pad_token_id", None)]
    known = [one for one in candidates if isinstance(one, int) and 0 <= one < (rows or one + 1)]
    return known[0] if known else int(tokens.flatten()[0])


def with_tokens(batch: Any, tokens: Tensor, new: Tensor) -> Any:
    """The batch with other inputs; labels that the inputs would have been are the original ones."""
    changed = _by_key(batch, lambda key, leaf: new if leaf is tokens and key not in LABEL_KEYS else leaf)
    if isinstance(batch, Mapping) and "input_ids" in batch and not any(key in batch for key in LABEL_KEYS):
        changed = dict(changed) | {"labels": tokens}
    return changed


def _by_key(batch: Any, change: Callable[[str | None, Any], Any]) -> Any:
    """`change(key, leaf)` for every leaf; the key is None where the batch has none."""
    if isinstance(batch, Mapping):
        return {key: map_leaves(value, partial(change, key)) for key, value in batch.items()}
    return map_leaves(batch, partial(change, None))
