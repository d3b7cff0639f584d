"""Adapters that PEFT did not make: modules with factors `lora_A` and `lora_B`, read as if they were PEFT's layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from learnscope.tensor.context import plain

DEFAULT = "default"
"""The adapter's name where the module has one, and does not name it."""
_PARTS = ("lora_A", "lora_B", "lora_E", "lora_magnitude_vector")
_MAGNITUDES = ("lora_magnitude_vector", "lora_magnitude", "magnitude")


def has_factors(module: nn.Module) -> bool:
    """Whether a module holds factors of its own, under the names that LoRA gave them."""
    parts = [_by_adapter(getattr(module, part, None)) for part in ("lora_A", "lora_B")]
    return bool(parts[0].keys() & parts[1].keys())


def weight_of(part: Any) -> Tensor:
    """The tensor of a part: its weight where it is a layer."""
    tensor: Tensor = getattr(part, "weight", part)
    return tensor


class PlainLayer:
    """A module with factors of its own, with the attributes of PEFT's layers that are read here.

    Factors are parameters, layers, or dictionaries of either by the adapter's name. ΔW is scaling·B A with A
    [r, inputs] and B [outputs, r], or with both turned round (x @ A @ B). The scaling is the module's `scaling`, else
    its `lora_alpha` or `alpha` over its rank (over the root of it with `use_rslora`), else 1.
    """

    adapter_layer_names = _PARTS
    disable_adapters = False
    num_experts = 1

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.lora_A, self.lora_B, self.lora_E = (_by_adapter(getattr(module, part, None)) for part in _PARTS[:3])
        names = [name for name in self.lora_A if name in self.lora_B]
        vectors = (_by_adapter(getattr(module, name, None)) for name in _MAGNITUDES)
        self.lora_magnitude_vector: dict[str, Any] = next(filter(None, vectors), {})
        self.lora_embedding_A: dict[str, Any] = {}
        self.lora_variant: dict[str, Any] = {}
        self.r = {name: self._rank(name) for name in names}
        self.use_dora = {name: name in self.lora_magnitude_vector for name in names}
        self.use_rslora = {name: bool(_entry(getattr(module, "use_rslora", False), name)) for name in names}
        self.scaling = {name: self._scaling(name) for name in names}
        ranks = getattr(module, "ranknum", None)
        self.ranknum = {name: entry for name in names if (entry := _entry(ranks, name)) is not None}
        self.merged = getattr(module, "merged", False) is True
        self.merged_adapters = names if self.merged else []
        self.active_adapters = names

    def matrices(self, name: str) -> tuple[Tensor, Tensor] | str:
        """B [outputs, r] and A [r, inputs], or why they are none."""
        left, right = (plain(weight_of(part[name])) for part in (self.lora_B, self.lora_A))
        if min(left.ndim, right.ndim) < 2:
            return f"its factors have shapes {tuple(right.shape)} and {tuple(left.shape)}: they are no matrices"
        left, right = left.flatten(1), right.flatten(1)
        if left.shape[1] != right.shape[0] and right.shape[1] != left.shape[0]:
            return f"its factors, {tuple(right.shape)} and {tuple(left.shape)}, do not fit each other"
        return (left.mT, right.mT) if self._is_turned(name) else (left, right)

    @property
    def fan_in_fan_out(self) -> bool:
        """Whether the weight is stored as [inputs, outputs]."""
        weight, name = getattr(self.get_base_layer(), "weight", None), next(iter(self.r))
        factors = self.matrices(name)
        if weight is None or isinstance(factors, str):
            return False
        shape = len(factors[0]), factors[1].shape[1]
        return tuple(weight.shape) != shape and tuple(weight.shape) == shape[::-1]

    def get_base_layer(self) -> nn.Module:
        """The layer whose weight the adapter adds to; one without a weight if there is none or more than one."""
        if isinstance(getattr(self.module, "weight", None), Tensor):
            return self.module
        others: list[Any] = [child for name, child in self.module.named_children() if not name.startswith("lora_")]
        weighted = [child for child in others if isinstance(getattr(child, "weight", None), Tensor)]
        matrices = [child for child in weighted if child.weight.ndim > 1]
        return matrices[0] if len(matrices) == 1 else nn.Identity()

    def _is_turned(self, name: str) -> bool:
        left, right = (weight_of(part[name]).flatten(1).shape for part in (self.lora_B, self.lora_A))
        straight, turned = left[1] == right[0], right[1] == left[0]
        # where the weight is square, both would do: the rank is the smaller of the two
        return turned and (not straight or right[1] < right[0])

    def _rank(self, name: str) -> int:
        right = weight_of(self.lora_A[name])
        if right.ndim < 2 or weight_of(self.lora_B[name]).ndim < 2:
            return 0
        return int(right.flatten(1).shape[1] if self._is_turned(name) else right.shape[0])

    def _scaling(self, name: str) -> float:
        own = _entry(getattr(self.module, "scaling", None), name)
        if own is not None:
            return float(own)
        alphas = (_entry(getattr(self.module, key, None), name) for key in ("lora_alpha", "alpha"))
        alpha = next((value for value in alphas if value is not None), None)
        ranks = (_entry(getattr(self.module, key, None), name) for key in ("r", "rank"))
        rank = float(next((value for value in ranks if value), self.r[name]))
        if alpha is None or not rank:
            return 1.0
        return float(alpha) / (math.sqrt(rank) if self.use_rslora[name] else rank)


def _by_adapter(part: Any) -> dict[str, Any]:
    """The parts by the adapter's name; a single one under `default`."""
    found = dict(part.items()) if isinstance(part, nn.ModuleDict | nn.ParameterDict | Mapping) else {DEFAULT: part}
    return {name: one for name, one in found.items() if isinstance(getattr(one, "weight", one), Tensor)}


def _entry(value: Any, name: str) -> Any:
    """A number of the module, or the adapter's own where there is one for each."""
    if isinstance(value, Mapping | nn.ParameterDict):
        value = value.get(name)
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    return value if isinstance(value, int | float) else None
