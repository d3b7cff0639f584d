"""Pooling a layer's output to one vector per example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from learnscope.model.features.activation_sites import first_tensor, is_measurable, why_not
from learnscope.task import unwrap
from learnscope.tensor.examples.products import widest_dtype

Pooling = Literal["mean", "last", "cls"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

_FEATURES_LAST = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm)
_CHANNELS_SECOND = (
    nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm, nn.MaxPool1d, nn.AvgPool1d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d,
)  # fmt: skip


class PoolingError(ValueError):
    """An output that cannot be pooled to one vector per example; the message says why."""


def pooled(
    output: Any, examples: int, how: Pooling = "mean", mask: Tensor | None = None, module: nn.Module | None = None
) -> Tensor:
    """[B, D] in float32 (float64 stays) from the first tensor in the output of a layer.

    [B, D] is taken as it is, [B] as [B, 1]. [B, T, D], or [B·T, D] if the mask [B, T] has as many entries, is a
    sequence: `mean` over the positions that the mask keeps (all, without a mask of that shape), `last` or `cls`: the
    last or the first of them. [B, C, H, W] and [B, C, D, H, W] are maps: their spatial mean, for every `how`. `module`
    identifies [B, C, L] of one-dimensional convolutions and [B, H, W, D] of linear layers and layer norms. An example
    whose mask keeps nothing gets NaN.
    """
    x = first_tensor(output)
    if x is None:
        raise PoolingError(f"gives out {type(output).__name__}, in which there is no tensor")
    if not is_measurable(x):
        raise PoolingError(f"gives out what is not measured: {why_not(x)}")
    x = x.detach()
    if mask is not None and x.ndim == 2 and x.shape[0] == mask.numel() and mask.shape[1] > 1:
        x = x.reshape(*mask.shape, -1)
    if x.shape[0] != examples:
        raise PoolingError(f"gives out {list(x.shape)} for {examples} examples: the first dimension is not theirs")
    dtype = torch.promote_types(x.dtype, torch.float32)
    if x.ndim <= 2:
        return x.reshape(examples, -1).to(dtype)
    if _is_map(x, module):
        return x.flatten(2).mean(2, dtype=widest_dtype(x.device)).to(dtype)
    if x.ndim > 3:
        x, mask = x.flatten(1, -2), None
    unmasked = mask.bool() if mask is not None and tuple(mask.shape) == tuple(x.shape[:2]) else None
    return _of_sequence(x, unmasked, how).to(dtype)


def attention_mask(batch: Any, *, decoder: bool = False) -> Tensor | None:
    """The mask [B, T] of a batch; None if it has none."""
    mask = batch.get("decoder_attention_mask" if decoder else "attention_mask") if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the model's configuration says that it has an encoder and a decoder."""
    return bool(getattr(getattr(unwrap(model), "config", None), "is_encoder_decoder", False))


def _is_map(x: Tensor, module: nn.Module | None) -> bool:
    if x.ndim == 3:
        return isinstance(module, _CHANNELS_SECOND)
    return not isinstance(module, _FEATURES_LAST)


def _of_sequence(x: Tensor, unmasked: Tensor | None, how: Pooling) -> Tensor:
    length = x.shape[1]
    if unmasked is None:
        return x.mean(1, dtype=widest_dtype(x.device)) if how == "mean" else x[:, length - 1 if how == "last" else 0]
    if how == "mean":
        # masked out, not multiplied by zero: the values at padding may be NaN
        sums = torch.where(unmasked[..., None], x, 0).sum(1, dtype=widest_dtype(x.device))
        return sums / unmasked.sum(1, keepdim=True)
    places = torch.where(unmasked, torch.arange(length, device=x.device), -1 if how == "last" else length)
    places = places.amax(1) if how == "last" else places.amin(1)
    chosen = x.gather(1, places.clamp(0, length - 1)[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
    return torch.where(unmasked.any(1)[:, None], chosen, float("nan"))
