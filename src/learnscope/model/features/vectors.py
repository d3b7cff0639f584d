"""Features of layers on fixed batches: one vector per example, pooled while the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.features.activation_sites import layer_modules
from learnscope.model.features.pooling import Pooling, PoolingError, attention_mask, is_encoder_decoder, pooled
from learnscope.model.guard import guard
from learnscope.model.outputs.evaluate import find_layer, model_device
from learnscope.names import ROOT, resolve
from learnscope.task import Task

SPREAD = 3
"""Number of blocks that are read by default: the first, the last, and one between."""
NOT_RUN = "did not run on these batches"


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
