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
    centre = rows.mean(0) if len(rows) else rows.new_zeros(rows.shape[1])
    step = max(1, CHUNK // max(1, len(rows)))
    for chunk, moved, limit in zip(origin.split(step), attacked.split(step), radius.split(step), strict=True):
        chunk, moved = chunk.double(), moved.double()
        # a radius that equals the distance to a token must include that token, despite rounding
        at, row = _rows_within(chunk, rows, centre, limit.double() * (1 + 1e-6), norm)
        best = torch.linalg.vector_norm(moved - chunk, dim=1)
        found = torch.full((len(chunk),), -1, dtype=torch.int64, device=rows.device)
        for pairs in torch.arange(len(at), device=at.device).split(max(1, CHUNK // max(1, rows.shape[1]))):
            distance = torch.linalg.vector_norm(moved[at[pairs]] - rows[row[pairs]], dim=1)
            nearest = best.scatter_reduce(0, at[pairs], distance, "amin")
            hits = pairs[(distance == nearest[at[pairs]]) & (distance < best[at[pairs]])]
            first = torch.full_like(found, len(rows)).scatter_reduce(0, at[hits], row[hits], "amin")
            found, best = torch.where(first < len(rows), first, found), nearest
        chosen.append(found)
    return torch.cat(chosen) if chosen else torch.empty(0, dtype=torch.int64)


def _rows_within(points: Tensor, rows: Tensor, centre: Tensor, limit: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """Pairs of a point and a row that differs from it and is at most `limit` away, by point and then by row.

    L2 distances are first estimated by a matrix product, whose error is far below the margin that is left here; those
    that may be within the limit are computed from the differences.
    """
    if norm == "linf":
        distance = torch.cdist(points, rows, p=torch.inf)
        at, row = ((distance <= limit[:, None]) & (distance > 0)).nonzero(as_tuple=True)
        return at, row
    near, far = points - centre, rows - centre
    size = near.square().sum(1, keepdim=True) + far.square().sum(1)
    squared = size - 2 * (near @ far.T)
    at, row = (squared <= limit[:, None].square() + NEAR * size).nonzero(as_tuple=True)
    kept = []
    for pairs in torch.arange(len(at), device=at.device).split(max(1, CHUNK // max(1, rows.shape[1]))):
        distance = torch.linalg.vector_norm(points[at[pairs]] - rows[row[pairs]], dim=1)
        kept.append(pairs[(distance <= limit[at[pairs]]) & (distance > 0)])
    inside = torch.cat(kept) if kept else at
    return at[inside], row[inside]


def token_count(embedding: nn.Module) -> int:
    """Rows of the embedding's table; refuses one that does not tell."""
    rows = table_rows(embedding)
    if not rows:
        raise ValueError(f"{type(embedding).__name__} has no num_embeddings, so the number of its tokens is not known")
    return rows
