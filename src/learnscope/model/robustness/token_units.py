"""Distances between tokens: the unit of attacks on embeddings, and the tokens nearest to an attack."""

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
"""Below this share of both squared lengths, a squared distance is computed again from the difference."""

_SPECIAL = ("bos", "eos", "pad", "unk", "sep", "cls", "mask", "decoder_start")


def special_tokens(model: nn.Module, tokenizer: Any = None) -> set[int]:
    """Ids that are not text: the special tokens of the tokenizer, and those that the configuration names."""
    config = getattr(unwrap(model), "config", None)
    listed = list(getattr(tokenizer, "all_special_ids", None) or ())
    for kind in _SPECIAL:
        ids = getattr(config, f"{kind}_token_id", None)
        listed += ids if isinstance(ids, list | tuple) else [ids]
    for name in ("added_tokens_decoder", "get_added_tokens_decoder"):
        added = getattr(tokenizer, name, None)
        added = added() if callable(added) else added
        if isinstance(added, Mapping):
            listed += [int(number) for number, token in added.items() if getattr(token, "special", False)]
    return {token for token in listed if isinstance(token, int)}


def real_tokens(model: nn.Module, rows: int, tokenizer: Any = None) -> Tensor:
    """Ids of the tokens that are text, in order; without a tokenizer all rows that the configuration does not name."""
    tokens: set[int] = set(range(rows))
    vocabulary = getattr(tokenizer, "get_vocab", None)
    if callable(vocabulary):
        tokens &= {int(token) for token in vocabulary().values()}
    elif isinstance(size := getattr(tokenizer, "vocab_size", None), int):
        tokens &= set(range(size))
    real = tokens - special_tokens(model, tokenizer)
    if not real:
        raise ValueError(
            f"the tokenizer and the model share no token that is text: the table has {rows} rows. Give the tokenizer "
            "that the model was trained with"
        )
    return torch.tensor(sorted(real))


def vocabulary_digest(tokenizer: Any) -> str | None:
    """A digest of the tokenizer's real tokens, as a key for cached results; None without a tokenizer."""
    if tokenizer is None:
        return None
    vocabulary = getattr(tokenizer, "get_vocab", None)
    tokens = sorted(vocabulary().items()) if callable(vocabulary) else getattr(tokenizer, "vocab_size", None)
    special = sorted(getattr(tokenizer, "all_special_ids", None) or ())
    return hashlib.sha256(repr((type(tokenizer).__name__, tokens, special)).encode()).hexdigest()[:16]


@torch.no_grad()
def token_table(embedding: nn.Module, tokens: Tensor) -> Tensor:
    """The embeddings of these tokens as the module returns them, [V, H] (some modules scale their table)."""
    device = next((p.device for p in embedding.parameters()), torch.device("cpu"))
    with guard(embedding):
        return torch.cat([embedding(part.to(device)[None])[0].detach() for part in tokens.split(1 << 16)])


@torch.no_grad()
def nearest_distances(points: Tensor, table: Tensor) -> Tensor:
    """For each point, [N, H], the L2 distance to the nearest row of the table that differs from it; in float64.

    Rows equal to the point are the same to the model, whatever their id. Every row is compared, in float64 and in
    chunks; small distances are computed from differences, since products would cancel. ∞ if no row differs.
    """
    if not len(table):
        return points.new_full((len(points),), torch.inf, dtype=torch.float64)
    centre = table.double().mean(0)
    rows = table.double() - centre
    distinct, inverse = torch.unique(points, dim=0, return_inverse=True)
    squares = rows.square().sum(1)
    distances = []
    for chunk in (distinct.double() - centre).split(max(1, CHUNK // max(1, len(rows)))):
        size = chunk.square().sum(1, keepdim=True) + squares
        squared = size - 2 * (chunk @ rows.T)
        at, row = (squared <= NEAR * size).nonzero(as_tuple=True)
        for part in torch.arange(len(at), device=at.device).split(max(1, CHUNK // max(1, rows.shape[1]))):
            squared[at[part], row[part]] = (chunk[at[part]] - rows[row[part]]).square().sum(1)
        squared[squared == 0] = torch.inf
        nearest, row = squared.min(1)
        direct = torch.linalg.vector_norm(chunk - rows[row], dim=1)
        distances.append(torch.where(nearest.isfinite(), direct, torch.inf))
    return torch.cat(distances)[inverse] if distances else points.new_empty(0, dtype=torch.float64)


@torch.no_grad()
def nearest_within(origin: Tensor, attacked: Tensor, radius: Tensor, table: Tensor, norm: Norm) -> Tensor:
    """For each of N tokens, the row of the table nearest to its attacked embedding; −1: the token stays.

    Only rows within `radius`, [N], of the original embedding count, in the attack's norm, and a row must be nearer (L2)
    to the attacked embedding than the original one is.
    """
    chosen = []
    rows = table.double()
    step = max(1, CHUNK // max(1, len(rows)))
    for chunk, moved, limit in zip(origin.split(step), attacked.split(step), radius.split(step), strict=True):
        chunk, moved = chunk.double(), moved.double()
        from_origin = torch.cdist(chunk, rows, p=torch.inf if norm == "linf" else 2.0, **_EXACT)
        from_attacked = torch.cdist(moved, rows, **_EXACT)
        to_original = torch.linalg.vector_norm(moved - chunk, dim=1)
        # a radius that equals the distance to a token must include that token, despite rounding
        from_attacked[(from_origin > limit[:, None].double() * (1 + 1e-6)) | (from_origin == 0)] = torch.inf
        nearest, row = from_attacked.min(1)
        chosen.append(torch.where(nearest < to_original, row, -1))
    return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)


_EXACT: dict[str, Any] = {"compute_mode": "donot_use_mm_for_euclid_dist"}


def token_count(embedding: nn.Module) -> int:
    """Rows of the embedding's table; refuses one that does not tell."""
    rows = table_rows(embedding)
    if not rows:
        raise ValueError(f"{type(embedding).__name__} has no num_embeddings, so the number of its tokens is not known")
    return rows
