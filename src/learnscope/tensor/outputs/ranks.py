"""Loss and rank of the target class at every position, without copying or sorting the logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from learnscope.tensor.context import arithmetic_dtype

CHUNK = 1 << 18
"""Logits processed at a time: small enough that intermediate results stay in the processor's cache."""
CHUNK_ON_ACCELERATORS = 1 << 24
NOWHERE = torch.iinfo(torch.int64).max
"""The rank of a class in a row with a NaN: such a row predicts nothing."""


def losses_and_ranks(logits: Tensor, targets: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Cross entropy in float32 or better, and how many classes rank above the target; both [N].

    `logits` is [P, C]; `rows` [N] are the positions that `targets` [N] belong to, None for all. Equal logits rank by
    class number, as in argmax, so that rank 0 is always a correct prediction.
    """
    limit = CHUNK if logits.device.type == "cpu" else CHUNK_ON_ACCELERATORS
    step = max(1, limit // max(1, logits.shape[1]))
    losses, ranks = [], []
    for start in range(0, max(targets.numel(), 1), step):
        part = slice(start, start + step)
        chunk = logits[part] if rows is None else logits[rows[part]]
        chunk = chunk.to(arithmetic_dtype(chunk))
        losses.append(F.cross_entropy(chunk, targets[part], reduction="none"))
        ranks.append(_ranks(chunk, targets[part], losses[-1]))
    return torch.cat(losses), torch.cat(ranks)


def _ranks(logits: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
    gold = logits.gather(1, targets[:, None])
    ranks = (logits > gold).sum(1)
    tied = (logits >= gold).sum(1) - ranks > 1
    if bool(tied.any()):
        before = torch.arange(logits.shape[1], device=logits.device) < targets[tied, None]
        ranks[tied] += ((logits[tied] == gold[tied]) & before).sum(1)
    broken = ~losses.isfinite()  # an infinite logit makes a loss NaN too, but has a rank
    if bool(broken.any()):
        ranks[broken] = torch.where(logits[broken].isnan().any(1), NOWHERE, ranks[broken])
    return ranks
