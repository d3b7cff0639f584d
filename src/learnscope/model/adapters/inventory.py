"""The adapters of a model, of all families: where they are, what they add, whether they are in use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from learnscope.model.adapters.families import Parts, adalora_parts, ia3_parts, layernorm_parts, lora_parts, vera_parts
from learnscope.model.adapters.plain import PlainLayer, has_factors
from learnscope.model.adapters.start import AdapterError
from learnscope.model.structure import Structure
from learnscope.names import clean_path

IN_LAYERS = {"LORA", "ADALORA", "VERA", "IA3", "LN_TUNING"}
"""PEFT's types whose adapters are in modules; prompts are not, and are found by the configuration only."""


@dataclass(slots=True)
class Adapter:
    """One adapter of one module. `scope` is the module's name without wrappers."""

    scope: str
    name: str
    parts: Parts
    layer: Any
    """PEFT's layer that holds it, or what stands for one."""
    active: bool
    """Whether a forward uses it: active or merged into the weight, and not disabled, which undoes a merge."""
    merged: bool
    tied_to: str | None = None
    """The scope of an earlier module that shares its parameters."""
    for_inference: bool = False
    """Whether PEFT loaded it for inference, not for training."""


@dataclass(slots=True)
class Adapters:
    """All adapters of a model; `unknown` are the modules with adapters of unknown families, by family."""

    items: list[Adapter] = field(default_factory=list)
    unknown: dict[str, list[str]] = field(default_factory=dict)


def find_adapters(model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> Adapters:
    """Every adapter of every module, in the model's order; the optimizers' learning rates tell LoRA+ from LoRA.

    Only small factors are copied, and nothing runs. Raises `AdapterError` if there is no adapter.
    """
    return AdapterPlaces(model).read(optimizers)


class AdapterPlaces:
    """Where a model has adapters, to read them more than once: most of its modules have none."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self._structure = model, Structure(model)
        candidates = (module for module in model.modules() if isinstance(getattr(module, "peft_config", None), dict))
        self._configured = next(candidates, None)
        self._modules = [
            (clean_path(path), module) for path, module in model.named_modules() if _read_as(module)[0] is not None
        ]

    def hold(self, model: nn.Module) -> bool:
        """Whether this is the model, with the same modules and parameters."""
        return model is self.model and self._structure.holds()

    def read(self, optimizers: Sequence[Optimizer] = ()) -> Adapters:
        """The adapters as they are now: see `find_adapters`."""
        configs: dict[str, Any] = {} if self._configured is None else self._configured.peft_config  # type: ignore[assignment]
        return _read(self.model, self._modules, configs, optimizers)


def _read(
    model: nn.Module, modules: Sequence[tuple[str, nn.Module]], configs: dict[str, Any], optimizers: Sequence[Optimizer]
) -> Adapters:
    # initial rates: a warm-up from 0 multiplies all by the same factor
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = {id(p): float(group.get("initial_lr", group["lr"])) for group in groups for p in group["params"]}
    adapters, first_scope = Adapters(), dict[tuple[int, int], str]()
    for scope, module in modules:
        kind, layer = _read_as(module)
        if kind is None:
            continue
        for name in layer.r if kind == "lora" else _names(layer):
            parts = _parts(kind, layer, name, configs.get(name), rates)
            if isinstance(parts, str):
                adapters.unknown.setdefault(parts, []).append(scope)
                continue
            merged = name in layer.merged_adapters
            active = (merged or name in layer.active_adapters) and not layer.disable_adapters
            tied = first_scope.setdefault(parts.tied, scope) if parts.tied else scope
            inference = bool(getattr(configs.get(name), "inference_mode", False))
            tied_to = None if tied == scope else tied
            adapters.items.append(Adapter(scope, name, parts, layer, active, merged, tied_to, inference))
    if not adapters.items and not adapters.unknown:
        kinds = sorted({str(getattr(config, "peft_type", type(config).__name__)) for config in configs.values()})
        if not kinds:
            raise AdapterError(
                f"{type(model).__name__} has no adapters: wrap it with peft.get_peft_model first, or give its modules "
                "factors lora_A and lora_B"
            )
        kinds = [kind.removeprefix("PeftType.") for kind in kinds]
        if set(kinds) & IN_LAYERS:
            raise AdapterError(
                f"{type(model).__name__} has no adapted module left, though it is configured for {', '.join(kinds)}: "
                "its adapters were unloaded or merged for good (unload, merge_and_unload). Look before that."
            )
        adapters.unknown = {kind: ["model"] for kind in kinds}
    return adapters


def _read_as(module: nn.Module) -> tuple[str | None, Any]:
    """The kind of adapter that a module holds, None for none, and the layer that it is read from."""
    layer: Any = module
    kind = _kind_of(layer.__class__)
    if kind is not None or not has_factors(module):
        return kind, layer
    layer = PlainLayer(module)
    return ("adalora" if layer.lora_E else "lora"), layer


def grouped(adapters: Sequence[Adapter]) -> dict[tuple[str, str], list[Adapter]]:
    """By the name of the adapter and its family, each in the model's order."""
    groups: dict[tuple[str, str], list[Adapter]] = {}
    for adapter in adapters:
        groups.setdefault((adapter.name, adapter.parts.family), []).append(adapter)
    return groups


def _names(layer: Any) -> list[str]:
    """The adapters that a layer holds, in the order in which they were added."""
    dictionaries: list[Any] = [getattr(layer, part, None) for part in layer.adapter_layer_names]
    return list(dict.fromkeys(name for part in dictionaries if hasattr(part, "keys") for name in part))


def _parts(kind: str, layer: Any, name: str, config: Any, rates: dict[int, float]) -> Parts | str:
    """The parts of the adapter, or the name of its family if that is unknown."""
    if kind == "lora":
        variant = layer.lora_variant.get(name)
        if variant is not None and not type(variant).__name__.startswith(("Dora", "_Dora")):
            return type(variant).__name__
        return lora_parts(layer, name, config, rates)
    known = OTHERS.get(kind)
    return kind if known is None else known(layer, name)


OTHERS: dict[str, Callable[[Any, str], Parts]] = {
    "adalora": adalora_parts,
    "vera": vera_parts,
    "ia3": ia3_parts,
    "layernorm": layernorm_parts,
}


def method_of(family: str) -> str:
    """PEFT's name for the method: all variants of LoRA are one, however they are initialised, scaled or trained.

    >>> method_of("pissa"), method_of("vera")
    ('lora', 'vera')
    """
    return family if family in OTHERS else "lora"


@functools.cache  # by class, since a model has many modules of one class and asking PEFT is slow
def _kind_of(layer: type[nn.Module]) -> str | None:
    """PEFT's kind of a layer, the package's name for unknown kinds; None if it is not one of PEFT's layers."""
    try:
        from peft.tuners.adalora.layer import AdaLoraLayer
        from peft.tuners.ia3 import IA3Layer
        from peft.tuners.ln_tuning.layer import LNTuningLayer
        from peft.tuners.lora import LoraLayer
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.tuners.vera.layer import VeraLayer
    except ImportError:  # then none of its layers is here
        return None
    if not issubclass(layer, BaseTunerLayer):
        return None
    kinds = {AdaLoraLayer: "adalora", LoraLayer: "lora", VeraLayer: "vera", IA3Layer: "ia3", LNTuningLayer: "layernorm"}
    known = next((kind for base, kind in kinds.items() if issubclass(layer, base)), None)
    # PEFT has one package per family: peft.tuners.loha.layer
    parts = reversed(layer.__module__.split("."))
    return known or next((part for part in parts if part not in ("layer", "bnb")), "")
