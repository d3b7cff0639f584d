"""Cheap fingerprints of inputs, to check that examples are the same as before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from learnscope.model.features.pooling import attention_mask
from learnscope.task import Task
from learnscope.task.batches import first_tensor
from learnscope.tensor.hashing import mixed, row_checks
from learnscope.tensor.host import lent

ENTRIES = 16
"""Entries of an input that are used, scattered over it."""


def input_sample(inputs: Any) -> Tensor | None:
    """[N, …]: a sample of each input from which fingerprints are computed; a copy. None if there is no tensor.

    For tokens with a mask, one number for the tokens that it keeps, whatever the padding.
    """
    if isinstance(inputs, Tensor) and inputs.ndim > 1:  # the usual case, at every step
        return _spread(inputs)
    mask = attention_mask(inputs)
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if mask is not None and isinstance(tokens, Tensor) and tokens.shape == mask.shape:
        unmasked = mask.bool()
        position = unmasked.cumsum(1)
        hashes = torch.where(unmasked, mixed(tokens.detach().long() ^ mixed(position)), 0)
        return hashes.sum(1, keepdim=True)
    x = first_tensor(inputs)
    return None if x is None or x.ndim == 0 else _spread(x)


def _spread(x: Tensor) -> Tensor | None:
    if x.is_sparse or x.is_quantized:
        return None
    flat = x.detach().flatten(1) if x.ndim > 1 else x.detach()[:, None]
    width = flat.shape[1]
    return flat.clone() if width <= ENTRIES else flat.index_select(1, _places(width, flat.device))


@cache
def _places(width: int, device: torch.device) -> Tensor:
    """Always the same indices; not evenly spaced, which in images would give the same few columns."""
    drawn = torch.randperm(width, generator=torch.Generator().manual_seed(width))[:ENTRIES]
    return drawn.sort().values.to(device)


@torch.no_grad()
def fingerprints(sample: Tensor) -> Tensor:
    """[N] in float64: equal for inputs with equal bits; on the CPU."""
    return row_checks(sample if sample.device.type != "mps" else sample.cpu()).cpu()  # mps has no float64


@torch.no_grad()
def sample_digest(task: Task, batches: Iterable[Any]) -> str:
    """Sixteen digits for these examples in this order: from some entries of each input, and from its label.

    The digest does not depend on how the examples are batched.
    """
    inputs, labels = hashlib.sha256(), hashlib.sha256()
    for batch in batches:
        for digest, values in ((inputs, input_sample(batch)), (labels, task.targets(batch))):
            # targets of sequences depend on the padding of their batch, and their inputs identify them already
            if values is not None and (digest is inputs or values.ndim == 1):
                digest.update(lent(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)).tobytes())
    return hashlib.sha256(inputs.digest() + labels.digest()).hexdigest()[:16]
