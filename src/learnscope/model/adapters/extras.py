"""What only some families of adapters have: DoRA's magnitude and direction, AdaLoRA's importance and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.adapters.inventory import Adapter
from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.context import plain, plain_arithmetic

CHUNK = 1 << 22
"""Entries of a weight that are read at a time."""
NOT_ALLOCATED = "the rank allocator has no scores: update_and_allocate has not been called, or has ended its schedule"


@dataclass(frozen=True, slots=True)
class Direction:
    """Norms of a DoRA adapter: of its magnitude vector, of W + ΔW before normalisation, of the whole update."""

    magnitude_norm: float
    direction_norm: float
    merged_update_norm: float
    """‖m ∘ (W + ΔW)/‖W + ΔW‖_rows − W‖_F: what merging adds to the weight."""


def dora_direction(adapter: Adapter) -> Direction | str:
    """Read part by part, so that no second copy of the weight is made; or the reason for none."""
    found = _dora(adapter)
    if isinstance(found, str):
        return found
    total = changed = 0.0
    for norms, _, added in found.parts():
        total += float(norms.square().sum())
        changed += float(added.square().sum())
    return Direction(float(torch.linalg.vector_norm(found.magnitude)), total**0.5, changed**0.5)


def dora_update(adapter: Adapter) -> Tensor | str:
    """m ∘ (W + ΔW)/‖W + ΔW‖_rows − W, what merging adds to the weight, as a float64 matrix; or the reason for none."""
    found = _dora(adapter)
    if isinstance(found, str):
        return found
    whole = torch.empty(found.weight.shape, dtype=torch.float64, device=found.weight.device)
    for _, rows, added in found.parts():
        whole[rows] = added
    return whole


@dataclass(frozen=True, slots=True)
class _Dora:
    weight: Tensor
    magnitude: Tensor
    factors: Factors

    def parts(self) -> Iterator[tuple[Tensor, slice, Tensor]]:
        """For some rows at a time: norms of W + ΔW, the rows, and what merging adds to them."""
        weight, factors = self.weight, self.factors
        with plain_arithmetic(weight.device):
            left, right = replace(factors, start=None).stacked()  # what is in the base now, and what is added to it
            began = None if factors.start is None else tuple(one.to(weight.device).double() for one in factors.start)
            step = max(1, CHUNK // weight.shape[1])
            for start in range(0, len(weight), step):
                rows = slice(start, start + step)
                base = weight[rows].double()
                part = torch.addmm(base, left[rows], right)
                norms = torch.linalg.vector_norm(part, dim=1)
                part *= (self.magnitude[rows] / norms)[:, None]
                base = base if began is None else torch.addmm(base, began[0][rows], began[1])
                yield norms, rows, part - base


def _dora(adapter: Adapter) -> _Dora | str:
    if adapter.layer.merged:
        return "an adapter is merged into the weight, which is no longer the one that DoRA adds to"
    factors = adapter.parts.factors
    if factors is None:
        return adapter.parts.reason or "it has no factors"
    weight = base_matrix(adapter.layer)
    if isinstance(weight, str):
        return weight
    return _Dora(weight, plain(adapter.parts.vectors["magnitude"][0]).flatten().double(), factors)


def base_matrix(layer: Any) -> Tensor | str:
    """The weight that an adapter sits on, as its factors see it, [outputs, inputs]; or why it cannot be read.

    Quantised weights are unpacked by PEFT's own function, where it knows them.
    """
    base = layer.get_base_layer()
    kind = (
        f"{type(base).__name__} with {type(base.weight).__name__}" if hasattr(base, "weight") else type(base).__name__
    )
    try:
        weight = plain(_unpacked(base))
    except (TypeError, AttributeError, ImportError, RuntimeError) as error:  # each packed format fails in its own way
        return f"its base weight ({kind}) cannot be unpacked here: {error}"
    if not weight.is_floating_point():
        return f"its base weight ({kind}) holds {weight.dtype} and PEFT does not know how to unpack it"
    return weight.mT if is_turned(layer) else weight.flatten(1)


def _unpacked(base: Any) -> Tensor:
    """By PEFT, which for a whole module would exchange its packed weight on a CPU: 8-bit layers then cannot run."""
    from peft.utils.integrations import dequantize_bnb_weight, dequantize_module_weight

    weight: Any = getattr(base, "weight", None)
    if type(weight).__name__ not in ("Params4bit", "Int8Params"):
        return dequantize_module_weight(base)
    # a stand-in for the layer's state, into which the scales would be written: they are in one of two places
    scales = getattr(getattr(base, "state", None), "SCB", None)
    held = SimpleNamespace(SCB=getattr(weight, "SCB", None) if scales is None else scales)
    found: Tensor = dequantize_bnb_weight(weight, state=held)
    return found


def is_turned(layer: Any) -> bool:
    """Whether the weight is held as [inputs, outputs]."""
    return isinstance(layer.get_base_layer(), nn.Embedding) or bool(getattr(layer, "fan_in_fan_out", False))


@dataclass(frozen=True, slots=True)
class Allocation:
    """AdaLoRA's importance of every triplet, and how many it keeps."""

    scores: Tensor | None
    rank: int


def adalora_allocations(model: nn.Module, adapters: list[Adapter]) -> list[Allocation]:
    """As PEFT's rank allocator computes them: s(E) + mean s(A) + mean s(B), s = sensitivity × uncertainty.

    `scores` are None while the allocator has none. The rank is the number of triplets in its last pattern, r before.
    """
    owner: Any = next((one for one in model.modules() if "rankallocator" in one.__dict__), None)
    if owner is None:
        return [Allocation(None, one.parts.rank or 0) for one in adapters]
    allocator = owner.rankallocator
    names = {id(p): name for name, p in owner.model.named_parameters()}
    pattern = allocator.peft_config.rank_pattern or {}
    found = []
    for one in adapters:
        e, a, b = (names.get(id(getattr(one.layer, f"lora_{part}")[one.name]), "") for part in "EAB")
        own = allocator.adapter_name == one.name  # it trains one adapter, the others keep their ranks
        scores = _scores(allocator, e, a, b) if own and {e, a, b} <= allocator.exp_avg_ipt.keys() else None
        kept = pattern.get(e, pattern.get(e.replace(f".{one.name}", ""))) if own else None
        found.append(Allocation(scores, one.parts.rank or 0 if kept is None else sum(kept)))
    return found


def _scores(allocator: Any, e: str, a: str, b: str) -> Tensor:
    with plain_arithmetic(allocator.exp_avg_ipt[e].device):
        vectors = torch.stack([allocator._element_score(a).mean(1), allocator._element_score(b).mean(0)], 1)
        return plain(allocator._combine_ipt(allocator._element_score(e), vectors))
