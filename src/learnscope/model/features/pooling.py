"""One vector an example from whatever a layer gives out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from learnscope.model.features.activation_sites import first_tensor, is_measurable, why_not

Pooling = Literal["mean", "last", "cls"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

_FEATURES_LAST = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)
_CHANNELS_SECOND = (
    nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm, nn.MaxPool1d, nn.AvgPool1d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d,
)  # fmt: skip


class PoolingError(ValueError):
    """An output that has no vector for every example; the message says what it is."""


def pooled(
    output: Any, examples: int, how: Pooling = "mean", mask: Tensor | None = None, module: nn.Module | None = None
) -> Tensor:
    """[B, D] in float32 (float64 stays) from the output of a layer, of which the first tensor counts.

    [B, D] is taken as it is, [B] as [B, 1]. [B, T, D], and [B·T, D] where the mask [B, T] says so, is a sequence:
    `mean` over the positions that the mask keeps (all, if none is known or it has another shape), `last` or `cls`:
    the last or the first of them. [B, C, H, W] and [B, C, D, H, W] are maps: their spatial mean, whatever `how`.
    `module` tells [B, C, L] of one-dimensional convolutions and [B, H, W, D] of linear layers and layer norms apart.
    An example whose mask keeps nothing gets NaN.
    """
    x = first_tensor(output)
    if x is None:
        raise PoolingError(f"gives out {type(output).__name__}, in which there is no tensor")
    if not is_measurable(x):
        raise PoolingError(f"gives out what is not measured: {why_not(x)}")
    x = x.detach()
    flat = mask is not None and x.ndim == 2 and x.shape[0] == mask.numel() and mask.shape[1] > 1
    if flat and mask is not None:
        x = x.reshape(*mask.shape, -1)
    if x.shape[0] != examples:
        raise PoolingError(f"gives out {list(x.shape)} for {examples} examples: the first dimension is not theirs")
    dtype = torch.promote_types(x.dtype, torch.float32)
    if x.ndim <= 2:
        return x.reshape(examples, -1).to(dtype)
    if _is_map(x, module):
        return x.flatten(2).mean(2, dtype=_wide(x)).to(dtype)
    if x.ndim > 3:
        x, mask = x.flatten(1, -2), None
    kept = mask.bool() if mask is not None and tuple(mask.shape) == tuple(x.shape[:2]) else None
    return _of_sequence(x, kept, how).to(dtype)


def attention_mask(batch: Any, *, decoder: bool = False) -> Tensor | None:
    """The mask [B, T] that a batch carries; None where it carries none."""
    found = batch.get("decoder_attention_mask" if decoder else "attention_mask") if isinstance(batch, Mapping) else None
    return found if isinstance(found, Tensor) and found.ndim == 2 else None


def _is_map(x: Tensor, module: nn.Module | None) -> bool:
    if x.ndim == 3:
        return isinstance(module, _CHANNELS_SECOND)
    return not isinstance(module, _FEATURES_LAST)


def _of_sequence(x: Tensor, kept: Tensor | None, how: Pooling) -> Tensor:
    length = x.shape[1]
    if kept is None:
        return x.mean(1, dtype=_wide(x)) if how == "mean" else x[:, length - 1 if how == "last" else 0]
    if how == "mean":
        # zeroed, not multiplied by zero: what stands at padding may be NaN
        sums = torch.where(kept[..., None], x, 0).sum(1, dtype=_wide(x))
        return sums / kept.sum(1, keepdim=True)
    places = torch.arange(length, device=x.device)
    places = torch.where(kept, places, -1).amax(1) if how == "last" else torch.where(kept, places, length).amin(1)
    chosen = x.gather(1, places.clamp(0, length - 1)[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
    return torch.where(kept.any(1)[:, None], chosen, float("nan"))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64  # which has no float64
