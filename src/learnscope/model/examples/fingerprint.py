"""A cheap number for each example's input, which tells whether an id still stands for the same example."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from learnscope.model.features.pooling import attention_mask
from learnscope.task.batches import first_tensor
from learnscope.tensor.hashing import mixed, row_checks

ENTRIES = 16
"""Entries of an input that are looked at, scattered over it."""


def input_sample(inputs: Any) -> Tensor | None:
    """[N, …]: what is needed of the inputs to tell them apart later; a copy. None where there is no tensor.

    Of tokens with a mask, one number for those that it keeps, wherever padding stands.
    """
    if isinstance(inputs, Tensor) and inputs.ndim > 1:  # the usual case, at every step
        return _spread(inputs)
    mask = attention_mask(inputs)
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if mask is not None and isinstance(tokens, Tensor) and tokens.shape == mask.shape:
        kept = mask.bool()
        place = kept.cumsum(1)
        each = torch.where(kept, mixed(tokens.detach().long() ^ mixed(place)), 0)
        return each.sum(1, keepdim=True)
    x = first_tensor(inputs)
    if x is None or x.ndim == 0:
        return None
    return _spread(x)


def _spread(x: Tensor) -> Tensor | None:
    if x.is_sparse or x.is_quantized:
        return None
    flat = x.detach().flatten(1) if x.ndim > 1 else x.detach()[:, None]
    width = flat.shape[1]
    return flat.clone() if width <= ENTRIES else flat.index_select(1, _places(width, flat.device))


@cache
def _places(width: int, device: torch.device) -> Tensor:
    """Always the same ones; not evenly spaced, which in images would be the same few columns."""
    drawn = torch.randperm(width, generator=torch.Generator().manual_seed(width))[:ENTRIES]
    return drawn.sort().values.to(device)


@torch.no_grad()
def fingerprints(sample: Tensor) -> Tensor:
    """[N] in float64: the same for the same input, by its bits; on the CPU."""
    return row_checks(sample if sample.device.type != "mps" else sample.cpu()).cpu()  # which has no float64
