"""Distances between tokens: what an attack on embeddings is measured by, and which texts it amounts to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.guard import guard
from learnscope.model.robustness.target import table_rows
from learnscope.task import unwrap
from learnscope.tensor.robustness.perturbation import Norm

CHUNK = 1 << 22
"""Distances held at a time: 32 MB in float64."""
NEAR = 1e-6
"""Share of both squared lengths below which a squared distance is taken again from the difference."""

_SPECIAL = ("bos", "eos", "pad", "unk", "sep", "cls", "mask", "decoder_start")


def special_tokens(model: nn.Module, tokenizer: Any = None) -> set[int]:
    """Ids that stand for no text: those the tokenizer calls special, and those that the configuration names."""
    config = getattr(unwrap(model), "config", None)
    named = [getattr(config, f"{kind}_token_id", None) for kind in _SPECIAL]
    found = {one for ids in named for one in (ids if isinstance(ids, list | tuple) else [ids]) if isinstance(one, int)}
    found |= {one for one in getattr(tokenizer, "all_special_ids", None) or () if isinstance(one, int)}
    for name in ("added_tokens_decoder", "get_added_tokens_decoder"):
        added = getattr(tokenizer, name, None)
        added = added() if callable(added) else added
        if isinstance(added, Mapping):
            found |= {int(one) for one, token in added.items() if getattr(token, "special", False)}
    return found


def real_tokens(model: nn.Module, rows: int, tokenizer: Any = None) -> Tensor:
    """Ids of the vocabulary's real tokens, in order: not special, and not rows that only fill up the table.

    Without a tokenizer every row of the table is taken for a token, but for those that the configuration names.
    """
    known: set[int] = set(range(rows))
    vocabulary = getattr(tokenizer, "get_vocab", None)
    if callable(vocabulary):
        known &= {int(one) for one in vocabulary().values()}
    elif isinstance(size := getattr(tokenizer, "vocab_size", None), int):
        known &= set(range(size))
    real = known - special_tokens(model, tokenizer)
    if not real:
        raise ValueError(
            f"the tokenizer and the model share no token that is text: the table has {rows} rows. Give the tokenizer "
            "that the model was trained with"
        )
    return torch.tensor(sorted(real))


def vocabulary_digest(tokenizer: Any) -> str | None:
    """Which tokens the tokenizer says are real, in short, for remembering what depends on it; None without one."""
    if tokenizer is None:
        return None
    vocabulary = getattr(tokenizer, "get_vocab", None)
    said = sorted(vocabulary().items()) if callable(vocabulary) else getattr(tokenizer, "vocab_size", None)
    special = sorted(getattr(tokenizer, "all_special_ids", None) or ())
    return hashlib.sha256(repr((type(tokenizer).__name__, said, special)).encode()).hexdigest()[:16]


@torch.no_grad()
def token_table(embedding: nn.Module, tokens: Tensor) -> Tensor:
    """The embeddings of these tokens as the module returns them, [V, H] (some scale what is in their table)."""
    device = next((p.device for p in embedding.parameters()), torch.device("cpu"))
    with guard(embedding):
        return torch.cat([embedding(some.to(device)[None])[0].detach() for some in tokens.split(1 << 16)])


@torch.no_grad()
def nearest_distances(points: Tensor, table: Tensor) -> Tensor:
    """For each point, [N, H], the L2 distance to the nearest row of the table that is another point; in float64.

    Rows equal to the point are the same point to the model, whatever their id. Every row is compared, in float64 and in
    chunks; small distances are taken from the differences, not from products, which would cancel. ∞ if there is none.
    """
    if not len(table):
        return points.new_full((len(points),), torch.inf, dtype=torch.float64)
    centre = table.double().mean(0)
    rows = table.double() - centre
    own, which = torch.unique(points, dim=0, return_inverse=True)
    squares = rows.square().sum(1)
    found = []
    for some in (own.double() - centre).split(max(1, CHUNK // max(1, len(rows)))):
        size = some.square().sum(1, keepdim=True) + squares
        apart = size - 2 * (some @ rows.T)
        at, row = (apart <= NEAR * size).nonzero(as_tuple=True)
        for part in torch.arange(len(at), device=at.device).split(max(1, CHUNK // max(1, rows.shape[1]))):
            apart[at[part], row[part]] = (some[at[part]] - rows[row[part]]).square().sum(1)
        apart[apart == 0] = torch.inf
        nearest, row = apart.min(1)
        direct = torch.linalg.vector_norm(some - rows[row], dim=1)
        found.append(torch.where(nearest.isfinite(), direct, torch.inf))
    return torch.cat(found)[which] if found else points.new_empty(0, dtype=torch.float64)


@torch.no_grad()
def nearest_within(origin: Tensor, attacked: Tensor, radius: Tensor, table: Tensor, norm: Norm) -> Tensor:
    """For each of N tokens, which row of the table is nearest to where the attack has moved it; −1: it stays.

    Only rows within `radius`, [N], of where it was are looked at, in the attack's norm, and one must be nearer (L2) to
    the attacked embedding than the token's own.
    """
    chosen = []
    rows = table.double()
    step = max(1, CHUNK // max(1, len(rows)))
    for some, moved, limit in zip(origin.split(step), attacked.split(step), radius.split(step), strict=True):
        some, moved = some.double(), moved.double()
        there = torch.cdist(some, rows, p=torch.inf if norm == "linf" else 2.0, **_EXACT)
        apart = torch.cdist(moved, rows, **_EXACT)
        own = torch.linalg.vector_norm(moved - some, dim=1)
        # a radius that is the distance to a token itself must hold that token, rounding apart
        apart[(there > limit[:, None].double() * (1 + 1e-6)) | (there == 0)] = torch.inf
        nearest, row = apart.min(1)
        chosen.append(torch.where(nearest < own, row, -1))
    return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)


_EXACT: dict[str, Any] = {"compute_mode": "donot_use_mm_for_euclid_dist"}


def token_count(embedding: nn.Module) -> int:
    """Rows of the embedding's table; refused where it does not say."""
    rows = table_rows(embedding)
    if not rows:
        raise ValueError(f"{type(embedding).__name__} does not say how many tokens it knows: it has no num_embeddings")
    return rows
