"""Features of layers on fixed batches: one vector per example, pooled while the model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from learnscope.model.features.activation_sites import first_tensor, is_measurable, layer_modules, why_not
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import find_layer, model_device
from learnscope.names import ROOT, resolve
from learnscope.task import Task, unwrap
from learnscope.tensor.examples.products import widest_dtype

Pooling = Literal["mean", "last", "cls"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
SPREAD = 3
"""Number of blocks that are read by default: the first, the last, and one between."""
NOT_RUN = "did not run on these batches"

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
    is_map = isinstance(module, _CHANNELS_SECOND) if x.ndim == 3 else not isinstance(module, _FEATURES_LAST)
    if is_map:
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


@dataclass(frozen=True, slots=True)
class Features:
    """Features [examples, dimensions] of each layer on the CPU, or the reason why there are none."""

    vectors: dict[str, Tensor]
    missing: dict[str, str]


@torch.no_grad()
def pooled_features(
    model: nn.Module, task: Task, batches: Sequence[Any], layers: Sequence[str], pooling: Pooling = "mean"
) -> Features:
    """Run `model` in eval mode over `batches` and leave it as it was; only pooled vectors are kept, no logits.

    If a layer runs several times in one forward, the last run counts.
    """
    device, decodes = model_device(model), is_encoder_decoder(model)
    parts: dict[str, list[Tensor]] = {name: [] for name in layers}
    missing: dict[str, str] = {}
    outputs: dict[str, Tensor | str] = {}
    examples = 0
    masks: tuple[Tensor | None, Tensor | None] = (None, None)

    def pool(name: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        try:
            outputs[name] = pooled(output, examples, pooling, masks["decoder" in name.split(".")], module)
        except PoolingError as error:
            outputs.setdefault(name, str(error))

    modules = layer_modules(model)
    with guard(model):
        for name in layers:
            module = modules[name] if name in modules else find_layer(model, name)
            module.register_forward_hook(partial(pool, name))  # the guard removes it
        for batch in batches:
            moved = task.to(batch, device)
            outputs.clear()
            examples, masks = task.size(batch), (attention_mask(moved), attention_mask(moved, decoder=decodes))
            task.logits(model, moved)
            for name in layers:
                output = outputs.get(name, NOT_RUN)
                if isinstance(output, str):
                    missing.setdefault(name, output)
                else:
                    parts[name].append(output.cpu())
    return Features({name: torch.cat(parts[name]) for name in layers if name not in missing}, missing)


def check_layers(model: nn.Module, layers: Sequence[str]) -> None:
    """Refuse a name that the model does not have, with close names."""
    modules = layer_modules(model)
    for name in layers:
        if name not in modules:
            find_layer(model, name)


def default_layers(model: nn.Module) -> list[str]:
    """Some of the blocks, and the last layer before the head, in the order in which the model registers them.

    With blocks of a known stack: the first, a middle and the last block, and the last layer after them except for the
    head. Otherwise an even choice of all layers except for the head. The head is the last layer, unless that is a
    norm, as in a language model whose head is tied to its embedding. For a model of one layer it is that layer.
    """
    modules = layer_modules(model)
    layers = [name for name in modules if name != ROOT] or list(modules)
    if len(layers) > 1 and "Norm" not in type(modules[layers[-1]]).__name__:
        layers = layers[:-1]
    stacked = [name for name in layers if resolve(f"{name}.weight").recognised]
    if not stacked:
        return _spread(layers, SPREAD + 1)
    after = layers[layers.index(stacked[-1]) + 1 :]
    return [*_spread(stacked, SPREAD), *after[-1:]]


def _spread(names: Sequence[str], at_most: int) -> list[str]:
    """Evenly spaced names, with the first and the last."""
    if len(names) <= at_most:
        return list(names)
    return [names[round(i * (len(names) - 1) / (at_most - 1))] for i in range(at_most)]
