"""Whether a model that another library has loaded computes what was promised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from learnscope.model.bits.torchao_export import ExportError
from learnscope.model.guard import guard
from learnscope.model.weights.swap import swapped
from learnscope.task import Positions, Task
from learnscope.tensor.outputs.divergence import compare_logits

ROUNDING = 1e-3
"""Largest difference of two logits, as a share of the largest logit, that sums in another order may make in float32:
some 8,000 roundings of 2^-23, all in one direction."""
HALF_ROUNDINGS = 16
"""The same in half precision, as multiples of the dtype's eps: a rounding after each of a few layers' matrices."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Means over all positions, in nats; None for outputs that are plain numbers."""

    kl: float | None
    """Of the original model and the one that was loaded."""
    promised_kl: float | None
    """Of the original model and itself with the numbers that were written."""
    difference: float
    """Between the logits of the last two: the largest, as a share of the largest logit."""


@torch.no_grad()
def judge(
    model: nn.Module, loaded: nn.Module, weights: Mapping[str, Tensor], task: Task, batches: Sequence[Any]
) -> Judgement:
    """Compare `loaded` with `model`, and with `model` under `weights`; refuses one that computes something else."""
    sums = {"kl": 0.0, "promised": 0.0}
    positions, largest, difference, numbers = 0, 0.0, 0.0, False
    for batch in batches:
        with guard(model):
            given = task.to(batch, next(model.parameters()).device)
            original = task.positions(model, given)
            original_logits = original.logits.clone()
            with swapped(model, dict(weights)):
                promised = task.positions(model, given).logits.clone()
        with guard(loaded):
            got = task.positions(loaded, task.to(batch, next(loaded.parameters()).device)).logits.to(promised.device)
        numbers = numbers or (original.targets is not None and original.targets.is_floating_point())
        difference = max(difference, float((got.double() - promised.double()).abs().max()))
        largest = max(largest, float(promised.double().abs().max()))
        if not numbers:
            for name, logits in (("kl", got), ("promised", promised)):
                kl = _kl(original, original_logits, logits)
                sums[name] += float(kl.sum())
            positions += len(kl)
    share = difference / largest if largest else difference
    _check(model, share)
    if numbers or not positions:
        return Judgement(None, None, share)
    return Judgement(sums["kl"] / positions, sums["promised"] / positions, share)


def _kl(original: Positions, logits: Tensor, variant: Tensor) -> Tensor:
    return compare_logits(logits, variant, original.targets, rows=original.rows).kl


def _check(model: nn.Module, share: float) -> None:
    eps = max(torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point())
    allowed = ROUNDING if eps < ROUNDING / HALF_ROUNDINGS else HALF_ROUNDINGS * eps
    if not share <= allowed or math.isnan(share):
        raise ExportError(
            f"the file was written, loaded again, and computed something else: its logits are off by {share:.3g} of "
            f"the largest, where rounding explains {allowed:.3g}. It was not kept"
        )
