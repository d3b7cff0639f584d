"""The initial factors of an adapter, and MiLoRA's initialisation.

PiSSA, MiLoRA and similar methods initialise the adapter with a part of the weight and leave the rest in the base:
training has changed B A − B₀A₀, and nothing stores B₀A₀ unless this module keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from learnscope.model.adapters.plain import weight_of
from learnscope.tensor.context import plain


class AdapterError(ValueError):
    """An adapter cannot be measured or initialised as asked; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Start:
    """Initial factors, the left one scaled; `method` is how they were made if the config does not tell."""

    left: Tensor
    right: Tensor
    method: str | None = None


_STARTS: WeakKeyDictionary[nn.Module, dict[str, tuple[ref[Any], Start]]] = WeakKeyDictionary()
"""By adapted module, weakly: nothing is attached to the model. Each with a reference to the adapter it belongs to: one
that is deleted and added again under the same name is another adapter."""


def start_of(layer: nn.Module, adapter: str) -> Start | None:
    owner, start = _STARTS.get(layer, {}).get(adapter, (None, None))
    return start if owner is not None and owner() is _holder(layer, adapter) else None


def _holder(layer: Any, adapter: str) -> Any:
    """The object that PEFT creates for an adapter and keeps as long as the adapter exists."""
    return layer.lora_A[adapter] if adapter in layer.lora_A else layer.lora_embedding_A[adapter]


def remember_start(model: nn.Module) -> int:
    """Keep a copy of the initial factors of LoRA adapters whose product is not zero; returns how many.

    Call it after `get_peft_model` and before training, for adapters that start with a part of the weight
    (`init_lora_weights="pissa"`, "olora", "corda", "lora_ga", "loftq"). `init_milora` does it itself. Adapters that
    start at zero, as plain LoRA does, do not need it. A copy of the model does not have the kept factors.
    """
    adapters = [(layer, adapter) for _, layer in lora_layers(model) for adapter in layer.r]
    if not adapters:
        raise AdapterError(f"{type(model).__name__} has no LoRA adapter whose start could be kept")
    count = 0
    for layer, adapter in adapters:
        earlier = start_of(layer, adapter)
        count += store_start(layer, adapter, None if earlier is None else earlier.method)
    return count


def register_start(layer: nn.Module, adapter: str, start: Start) -> None:
    """Register the initial factors of an adapter that were kept elsewhere."""
    _STARTS.setdefault(layer, {})[adapter] = (ref(_holder(layer, adapter)), start)


def store_start(layer: Any, adapter: str, method: str | None) -> bool:
    """Keep the current factors as the initial ones if their product is not zero; returns whether it did."""
    left, right = (plain(factor).flatten(1) for factor in lora_factors(layer, adapter))
    if not bool(left.any()) or not bool(right.any()):
        return False
    register_start(layer, adapter, Start(left.double() * layer.scaling[adapter], right.clone(), method))
    return True


def lora_factors(layer: Any, adapter: str) -> tuple[Tensor, Tensor]:
    """B and A as their layer holds them: PEFT's are parameters for embeddings, layers for everything else."""
    if adapter in layer.lora_embedding_A:
        return layer.lora_embedding_B[adapter], layer.lora_embedding_A[adapter]
    return weight_of(layer.lora_B[adapter]), weight_of(layer.lora_A[adapter])


def lora_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """The modules that PEFT's LoRA adapts, without AdaLoRA's, by name."""
    try:
        from peft.tuners.adalora.layer import AdaLoraLayer
        from peft.tuners.lora import LoraLayer
    except ImportError:  # then none of its layers is here
        return []
    named = model.named_modules()
    return [(name, m) for name, m in named if isinstance(m, LoraLayer) and not isinstance(m, AdaLoraLayer)]


def init_milora(model: nn.Module, adapter: str = "default") -> int:
    """Initialise a fresh LoRA adapter as MiLoRA does (arXiv 2406.09044); returns the number of modules.

    With W = U S Vᵀ and s the scaling, the r smallest singular components go into the adapter, B = U_r √(S_r/s) and
    A = √(S_r/s) V_rᵀ, and the base keeps the rest: W − s·B A. The model's outputs do not change. With
    `peft.optimizers.create_loraplus_optimizer` this is MiLoRA+. All modules are checked before any is changed.
    """
    adapted = [(name, layer) for name, layer in lora_layers(model) if adapter in layer.r]
    if not adapted:
        raise AdapterError(f"{type(model).__name__} has no LoRA adapter {adapter!r}")
    owners: dict[int, str] = {}
    for name, layer in adapted:
        reason = _why_no_milora(layer, adapter)
        weight = layer.get_base_layer().weight
        if reason is None and id(weight) in owners:
            reason = f"its weight is that of {owners[id(weight)]}, which would lose its minor components twice"
        if reason is not None:
            raise AdapterError(f"init_milora: {name}: {reason}")
        owners[id(weight)] = name
    with torch.no_grad():
        for _, layer in adapted:
            base, rank, scaling = layer.get_base_layer().weight, layer.r[adapter], layer.scaling[adapter]
            weight = base.data.mT if layer.fan_in_fan_out else base.data
            wide = weight.double()
            u, s, v = torch.linalg.svd(wide, full_matrices=False)
            root = (s[-rank:] / scaling).sqrt()
            left, right = layer.lora_B[adapter].weight, layer.lora_A[adapter].weight
            left.data.copy_(u[:, -rank:] * root)
            right.data.copy_(root[:, None] * v[-rank:])
            # with the rounded factors, so that the sum is W again
            weight.copy_(wide - scaling * (left.data.double() @ right.data.double()))
            store_start(layer, adapter, "milora")
    return len(adapted)


def _why_no_milora(layer: Any, adapter: str) -> str | None:
    weight = layer.get_base_layer().weight
    rank = layer.r[adapter]
    if layer.merged:
        return "an adapter is merged into it: unmerge it first"
    if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        return f"its weight is {type(weight).__name__} of {weight.dtype}: begin with the weight before quantising it"
    if adapter not in layer.lora_A or not isinstance(layer.lora_A[adapter], nn.Linear):
        return f"{type(layer.get_base_layer()).__name__} is no linear layer: leave it out of target_modules"
    if layer.lora_variant.get(adapter) is not None:
        return f"the adapter is {type(layer.lora_variant[adapter]).__name__}, not plain LoRA"
    if rank > min(weight.shape):
        return f"r={rank} is more than the {min(weight.shape)} singular values of its weight"
    if bool(layer.lora_B[adapter].weight.any()):
        return "its adapter is no longer as LoRA begins (B is not 0): call init_milora before training"
    return None
