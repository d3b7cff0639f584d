"""The factors that an adapter began with, and MiLoRA's beginning.

PiSSA, MiLoRA and their like begin with a part of the weight in the adapter and the rest in the base: what training
has changed is B A − B₀A₀, and B₀A₀ is kept nowhere unless somebody keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from learnscope.tensor.context import plain


class AdapterError(ValueError):
    """An adapter cannot be examined or begun as asked; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Start:
    """Factors at the start, the scaling in the left one, and how they were made, where that is not in the config."""

    left: Tensor
    right: Tensor
    method: str | None = None


_STARTS: WeakKeyDictionary[nn.Module, dict[str, tuple[ref[Any], Start]]] = WeakKeyDictionary()
"""By adapted module: nothing is hung onto the model, and what is kept goes with it. Each with what it is the start of:
an adapter that is deleted and added anew under its old name is another one."""


def start_of(layer: nn.Module, adapter: str) -> Start | None:
    owner, start = _STARTS.get(layer, {}).get(adapter, (None, None))
    return start if owner is not None and owner() is _holder(layer, adapter) else None


def _holder(layer: Any, adapter: str) -> Any:
    """What PEFT makes for an adapter, and keeps for as long as the adapter is there."""
    return layer.lora_A[adapter] if adapter in layer.lora_A else layer.lora_embedding_A[adapter]


def remember_start(model: nn.Module) -> int:
    """Keep a copy of the factors of LoRA adapters whose product is not zero, as what they began with; how many.

    Call it after `get_peft_model` and before training, for adapters that begin with a part of the weight
    (`init_lora_weights="pissa"`, "olora", "corda", "lora_ga", "loftq"). `init_milora` does it itself. Adapters that
    begin with zero, as plain LoRA does, need none. A copy of the model has no start.
    """
    held = [(layer, adapter) for _, layer in lora_layers(model) for adapter in layer.r]
    if not held:
        raise AdapterError(f"{type(model).__name__} has no LoRA adapter whose start could be kept")
    kept = 0
    for layer, adapter in held:
        known = start_of(layer, adapter)
        kept += keep_start(layer, adapter, None if known is None else known.method)
    return kept


def know_start(layer: nn.Module, adapter: str, start: Start) -> None:
    """Say what an adapter began with, where somebody else has kept it."""
    _STARTS.setdefault(layer, {})[adapter] = (ref(_holder(layer, adapter)), start)


def keep_start(layer: Any, adapter: str, method: str | None) -> bool:
    """Whether there was something to keep."""
    left, right = (plain(one).flatten(1) for one in lora_factors(layer, adapter))
    if not bool(left.any()) or not bool(right.any()):
        return False
    know_start(layer, adapter, Start(left.double() * layer.scaling[adapter], right.clone(), method))
    return True


def lora_factors(layer: Any, adapter: str) -> tuple[Tensor, Tensor]:
    """B and A as PEFT holds them: parameters for embeddings, layers for everything else."""
    if adapter in layer.lora_embedding_A:
        return layer.lora_embedding_B[adapter], layer.lora_embedding_A[adapter]
    return layer.lora_B[adapter].weight, layer.lora_A[adapter].weight


def lora_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """The modules that PEFT's LoRA adapts, AdaLoRA's apart, by name."""
    from peft.tuners.adalora.layer import AdaLoraLayer
    from peft.tuners.lora import LoraLayer

    named = model.named_modules()
    return [(name, m) for name, m in named if isinstance(m, LoraLayer) and not isinstance(m, AdaLoraLayer)]


def init_milora(model: nn.Module, adapter: str = "default") -> int:
    """Begin a fresh LoRA adapter as MiLoRA does (arXiv 2406.09044); how many modules.

    With W = U S Vᵀ and s the scaling, the r smallest singular components go into the adapter, B = U_r √(S_r/s) and
    A = √(S_r/s) V_rᵀ, and the base keeps the rest: W − s·B A. The model computes what it did before. With
    `peft.optimizers.create_loraplus_optimizer` this is MiLoRA+. All modules are checked before one is changed.
    """
    found = [(name, layer) for name, layer in lora_layers(model) if adapter in layer.r]
    if not found:
        raise AdapterError(f"{type(model).__name__} has no LoRA adapter {adapter!r}")
    owners: dict[int, str] = {}
    for name, layer in found:
        reason = _why_no_milora(layer, adapter)
        weight = layer.get_base_layer().weight
        if reason is None and id(weight) in owners:
            reason = f"its weight is that of {owners[id(weight)]}, which would lose its minor components twice"
        if reason is not None:
            raise AdapterError(f"init_milora: {name}: {reason}")
        owners[id(weight)] = name
    with torch.no_grad():
        for _, layer in found:
            _begin_minor(layer, adapter)
    return len(found)


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


def _begin_minor(layer: Any, adapter: str) -> None:
    base, rank, scaling = layer.get_base_layer().weight, layer.r[adapter], layer.scaling[adapter]
    weight = base.data.mT if layer.fan_in_fan_out else base.data
    wide = weight.double()
    u, s, v = torch.linalg.svd(wide, full_matrices=False)
    root = (s[-rank:] / scaling).sqrt()
    left, right = layer.lora_B[adapter].weight, layer.lora_A[adapter].weight
    left.data.copy_(u[:, -rank:] * root)
    right.data.copy_(root[:, None] * v[-rank:])
    # with the factors as they were rounded, so that the sum is W again
    weight.copy_(wide - scaling * (left.data.double() @ right.data.double()))
    keep_start(layer, adapter, "milora")
