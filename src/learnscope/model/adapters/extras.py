"""Adapters beside their base weights, and DoRA's magnitude and direction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.adapters.inventory import Adapter
from learnscope.model.adapters.plain import PlainLayer
from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.adapters.subspace import best_matches
from learnscope.tensor.context import plain, plain_arithmetic
from learnscope.tensor.gradients.gradient import sum_squares

CHUNK = 1 << 22
"""Entries of a weight that are read at a time."""
MERGED = "an adapter is merged into the weight: what it was before is read while none is"
TRAINED = "its base weight is trained as well: what it began with is not kept"


@dataclass(frozen=True, slots=True)
class Direction:
    """Norms of a DoRA adapter: of its magnitude vector, of W + ΔW before normalisation, of the whole update."""

    magnitude_norm: float
    direction_norm: float
    merged_update_norm: float
    """‖m ∘ (W + ΔW)/‖W + ΔW‖_rows − W‖_F: what merging adds to the weight."""


def dora_direction(adapter: Adapter) -> Direction | str:
    """Computed in parts, so that the weight is not copied; or the reason why there is none."""
    weight = _dora_weight(adapter)
    if isinstance(weight, str):
        return weight
    total = changed = 0.0
    for norms, _, added in _dora_parts(adapter, weight):
        total += float(norms.square().sum())
        changed += float(added.square().sum())
    return Direction(float(torch.linalg.vector_norm(_magnitude(adapter))), total**0.5, changed**0.5)


def dora_update(adapter: Adapter) -> Tensor | str:
    """m ∘ (W + ΔW)/‖W + ΔW‖_rows − W, what merging adds to the weight, in float64; or why there is none."""
    weight = _dora_weight(adapter)
    if isinstance(weight, str):
        return weight
    update = torch.empty(weight.shape, dtype=torch.float64, device=weight.device)
    for _, rows, added in _dora_parts(adapter, weight):
        update[rows] = added
    return update


def _dora_weight(adapter: Adapter) -> Tensor | str:
    if adapter.layer.merged:
        return "an adapter is merged into the weight, which is no longer the one that DoRA adds to"
    if adapter.parts.factors is None:
        return adapter.parts.reason or "it has no factors"
    return base_matrix(adapter.layer)


def _magnitude(adapter: Adapter) -> Tensor:
    return plain(adapter.parts.vectors["magnitude"][0]).flatten().double()


def _dora_parts(adapter: Adapter, weight: Tensor) -> Iterator[tuple[Tensor, slice, Tensor]]:
    """Some rows at a time: norms of W + ΔW, the rows, and what merging adds to them."""
    factors, magnitude = adapter.parts.factors, _magnitude(adapter)
    assert factors is not None, "checked with the weight"
    with plain_arithmetic(weight.device):
        left, right = replace(factors, start=None).stacked()  # what the adapter now adds to the base
        initial = _start_on(adapter, weight)
        for rows in _row_chunks(weight):
            base = weight[rows].double()
            part = torch.addmm(base, left[rows], right)
            norms = torch.linalg.vector_norm(part, dim=1)
            part *= (magnitude[rows] / norms)[:, None]
            base = base if initial is None else torch.addmm(base, initial[0][rows], initial[1])
            yield norms, rows, part - base


def _row_chunks(weight: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK // weight.shape[1])
    return (slice(first, first + step) for first in range(0, len(weight), step))


def _start_on(adapter: Adapter, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """The factors B₀ and A₀ that PiSSA and similar methods have moved into the adapter, in float64."""
    start = None if adapter.parts.factors is None else adapter.parts.factors.start
    return None if start is None else (start[0].to(weight.device).double(), start[1].to(weight.device).double())


def original_norm(adapter: Adapter) -> float | str:
    """‖W‖_F of the weight without the adapter's start, in one pass without copying it; or why it cannot be read."""
    weight = _frozen_base(adapter)
    if isinstance(weight, str):
        return weight
    with plain_arithmetic(weight.device):
        start = _start_on(adapter, weight)
        if start is not None:
            chunks = (torch.addmm(weight[rows].double(), start[0][rows], start[1]) for rows in _row_chunks(weight))
            return math.sqrt(sum(float(chunk.square().sum()) for chunk in chunks))
    return math.sqrt(float(sum_squares([weight])))


def intruder_similarity(adapter: Adapter) -> Tensor | str:
    """`best_matches` of the tuned weight (DoRA: with its magnitude) in the original one; or why there are none.

    Of the weights as they are stored, as in PEFT's `reduce_intruder_dimension`: the left singular vectors are those of
    the outputs for Linear, of the inputs for GPT-2's Conv1D, and of the vocabulary for an embedding.
    """
    factors = adapter.parts.factors
    if factors is None:
        return adapter.parts.reason or "it has no factors"
    weight = _frozen_base(adapter)
    if isinstance(weight, str):
        return weight
    with plain_arithmetic(weight.device):
        start = _start_on(adapter, weight)
        weight = weight.double() if start is None else torch.addmm(weight.double(), *start)
    if adapter.parts.family == "dora":
        update = dora_update(adapter)
        if isinstance(update, str):
            return update
        factors = Factors(update, torch.eye(update.shape[1], dtype=torch.float64, device=update.device))
    if is_turned(adapter.layer):
        weight, factors = weight.mT, factors.turned()
    try:
        return best_matches(weight, factors)
    except ValueError as error:
        return str(error)


def _frozen_base(adapter: Adapter) -> Tensor | str:
    if adapter.layer.merged:
        return MERGED
    if any(p.requires_grad for name, p in adapter.layer.get_base_layer().named_parameters() if name == "weight"):
        return TRAINED
    return base_matrix(adapter.layer)


def base_matrix(layer: Any) -> Tensor | str:
    """The weight under an adapter, in the layout of its factors, [outputs, inputs]; or why it cannot be read.

    Quantised weights are unpacked by PEFT's own function, if it supports them.
    """
    base = layer.get_base_layer()
    if isinstance(layer, PlainLayer) and not hasattr(base, "weight"):
        return "the weight that it adds to is not known: its module holds none, or several"
    kind = type(base).__name__ + (f" with {type(base.weight).__name__}" if hasattr(base, "weight") else "")
    try:
        from peft.utils.integrations import dequantize_bnb_weight, dequantize_module_weight

        packed: Any = getattr(base, "weight", None)
        if type(packed).__name__ in ("Params4bit", "Int8Params"):
            # from the weight alone: given the module, PEFT would replace the weight on a CPU and fail. PEFT would write
            # the scales, which are in one of two places, to the layer's state: it gets a stand-in
            scales = getattr(getattr(base, "state", None), "SCB", None)
            state = SimpleNamespace(SCB=getattr(packed, "SCB", None) if scales is None else scales)
            weight = plain(dequantize_bnb_weight(packed, state=state))
        else:
            weight = plain(dequantize_module_weight(base))
    except (TypeError, AttributeError, ImportError, RuntimeError) as error:  # packed formats fail in different ways
        return f"its base weight ({kind}) cannot be unpacked here: {error}"
    if not weight.is_floating_point():
        return f"its base weight ({kind}) holds {weight.dtype} and PEFT does not know how to unpack it"
    return weight.mT if is_turned(layer) else weight.flatten(1)


def is_turned(layer: Any) -> bool:
    """Whether the weight is stored as [inputs, outputs]."""
    return isinstance(layer.get_base_layer(), nn.Embedding) or bool(getattr(layer, "fan_in_fan_out", False))
