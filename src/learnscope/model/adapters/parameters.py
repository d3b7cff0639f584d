"""The parameters that adapters train: their module, their adapter, and their name in the family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from learnscope.model.adapters.inventory import Adapters
from learnscope.names import ROOT, resolve

OUTSIDE_ADAPTERS = "none"
"""The family, and the adapter, of parameters that belong to no adapter."""
_SAVED = "modules_to_save"
_CALLED = {
    "lora_embedding_A": "lora_A",
    "lora_embedding_B": "lora_B",
    "lora_magnitude_vector": "magnitude",
    "vera_lambda_b": "lambda_b",
    "vera_lambda_d": "lambda_d",
}
"""Our names for parts, where they differ from PEFT's."""
_NORMS = "ln_tuning_layers"


@dataclass(frozen=True, slots=True)
class TrainedPart:
    """One parameter of an adapter, or of none; `scope` is the module's name without wrappers."""

    scope: str
    adapter: str
    family: str
    component: str
    parameter: Tensor
    layer: Any = None
    """PEFT's layer that holds it; None if there is none."""
    shared_with: str | None = None
    """The scope of an earlier module with the same parameter."""

    def why_no_gradient(self) -> str:
        """The most likely reason why the parameter has no gradient."""
        layer = self.layer
        if self.shared_with is not None:
            return f"shares its parameter with {self.shared_with}"
        if layer is not None and self.adapter in layer.merged_adapters:
            return "it is merged into the weight: no backward reaches it"
        if layer is not None and layer.disable_adapters:
            return "adapters are disabled"
        if layer is not None and self.adapter not in layer.active_adapters:
            return f"the adapter {self.adapter} is not active"
        return "no backward has reached it" if self.parameter.requires_grad else "frozen"


def trained_parts(adapters: Adapters, named: Iterable[tuple[str, Tensor]], *, others: bool) -> list[TrainedPart]:
    """All parameters of the adapters, also frozen ones, in the model's order; with `others` all other trained ones.

    Adapters of an unknown family are recognised by the names of their parameters, see `resolve`.
    """
    parts: list[TrainedPart] = []
    owners: dict[int, str] = {}
    for adapter in adapters.items:
        for component, parameter in _tensors(adapter.layer, adapter.name):
            owner = owners.setdefault(id(parameter), adapter.scope)
            family, shared = adapter.parts.family, None if owner == adapter.scope else owner
            parts.append(TrainedPart(adapter.scope, adapter.name, family, component, parameter, adapter.layer, shared))
    families = {scope: family for family, scopes in adapters.unknown.items() for scope in scopes}
    for name, parameter in named:
        if id(parameter) in owners:
            continue
        part = _by_name(name, parameter, families)
        if part.family != OUTSIDE_ADAPTERS or (others and parameter.requires_grad):
            parts.append(part)
    return parts


def _tensors(layer: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors that PEFT's layer holds for an adapter, by component."""
    for part in dict.fromkeys(layer.adapter_layer_names):  # DoRA names its magnitude twice
        tensors: Any = getattr(layer, part, None)
        if not hasattr(tensors, "keys") or name not in tensors:
            continue
        module = tensors[name]
        if part == _NORMS and name in layer.merged_adapters:
            module = layer.base_layer  # merging exchanges the two
        component = _CALLED.get(part, part)
        if not isinstance(module, nn.Module):
            yield component, module
            continue
        for leaf, parameter in module.named_parameters():
            yield leaf if part == _NORMS else component if leaf == "weight" else f"{component}.{leaf}", parameter


def _by_name(name: str, parameter: Tensor, families: dict[str, str]) -> TrainedPart:
    resolved = resolve(name)
    owner, _, leaf = resolved.clean.rpartition(".")
    if resolved.adapter is not None and resolved.adapter != _SAVED:
        path = resolved.clean.split(".")
        scope = ".".join(path[: path.index(resolved.adapter)]) or resolved.layer
        family = families.get(scope, families.get("model"))  # prompts belong to the model as a whole
        if family is not None:
            return TrainedPart(scope, resolved.adapter_name or OUTSIDE_ADAPTERS, family, resolved.adapter, parameter)
    return TrainedPart(owner or ROOT, resolved.adapter_name or OUTSIDE_ADAPTERS, OUTSIDE_ADAPTERS, leaf, parameter)
