"""The original weights under adapters, and how the tuned weights differ from them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from learnscope.model.adapters.extras import CHUNK, base_matrix, dora_update
from learnscope.model.adapters.inventory import Adapter
from learnscope.tensor.adapters.spectrum import Factors
from learnscope.tensor.adapters.subspace import Intruders, intruder_dimensions
from learnscope.tensor.context import plain_arithmetic
from learnscope.tensor.gradients.gradient import sum_squares

MERGED = "an adapter is merged into the weight: what it was before is read while none is"
TRAINED = "its base weight is trained as well: what it began with is not kept"


def original_weight(adapter: Adapter) -> Tensor | str:
    """W, float64: the base weight plus the B₀A₀ that PiSSA and similar methods have moved into the adapter."""
    weight = _base(adapter)
    if isinstance(weight, str):
        return weight
    with plain_arithmetic(weight.device):
        start = None if adapter.parts.factors is None else adapter.parts.factors.start
        if start is None:
            return weight.double()
        return torch.addmm(weight.double(), *(factor.to(weight.device).double() for factor in start))


def original_norm(adapter: Adapter) -> float | str:
    """‖W‖_F, from one pass over the weight without copying it; or why it cannot be read."""
    weight = _base(adapter)
    if isinstance(weight, str):
        return weight
    start = None if adapter.parts.factors is None else adapter.parts.factors.start
    if start is None:
        return math.sqrt(float(sum_squares([weight])))
    total = 0.0
    with plain_arithmetic(weight.device):
        left, right = (factor.to(weight.device).double() for factor in start)
        step = max(1, CHUNK // weight.shape[1])
        for first in range(0, len(weight), step):
            rows = slice(first, first + step)
            total += float(torch.addmm(weight[rows].double(), left[rows], right).square().sum())
    return math.sqrt(total)


def intruders_of(adapter: Adapter) -> Intruders | str:
    """Directions of the tuned weight that W does not have; DoRA's magnitude is part of the tuned weight."""
    factors = adapter.parts.factors
    if factors is None:
        return adapter.parts.reason or "it has no factors"
    weight = original_weight(adapter)
    if isinstance(weight, str):
        return weight
    if adapter.parts.family == "dora":
        update = dora_update(adapter)
        if isinstance(update, str):
            return update
        factors = Factors(update, torch.eye(update.shape[1], dtype=torch.float64, device=update.device))
    try:
        return intruder_dimensions(weight, factors)
    except ValueError as error:
        return str(error)


def _base(adapter: Adapter) -> Tensor | str:
    if adapter.layer.merged:
        return MERGED
    if any(p.requires_grad for name, p in adapter.layer.get_base_layer().named_parameters() if name == "weight"):
        return TRAINED
    return base_matrix(adapter.layer)
