"""How important the directions of AdaLoRA's adapters are, and how many of them it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from learnscope.model.adapters.inventory import Adapter
from learnscope.model.adapters.plain import weight_of
from learnscope.tensor.context import plain, plain_arithmetic

ALLOCATOR = "the rank allocator's scores"
GRADIENTS = "|w·∂L/∂w| of this step, as the rank allocator has no scores"
VALUES = "|E|, as the rank allocator has no scores and no gradient is there"


@dataclass(frozen=True, slots=True)
class Allocation:
    """Scores of the triplets (a column of P, a value of E, a row of Q), and how many triplets are kept."""

    scores: Tensor
    how: str
    """`ALLOCATOR`, `GRADIENTS` or `VALUES`."""
    rank: int


def adalora_allocations(model: nn.Module, adapters: list[Adapter]) -> list[Allocation]:
    """Of each adapter. A triplet's score is s(E) + mean s(P) + mean s(Q), with s of every entry.

    s is what PEFT's rank allocator computes: smoothed sensitivity × uncertainty. It has no scores unless a loop calls
    `update_and_allocate`, nor once its schedule has ended. Then s is the sensitivity |w·∂L/∂w| that it begins with,
    from the gradients that are there; without those, the score is |E|, the size of a direction. The rank is the number
    of triplets in the allocator's last pattern, or r before the first.
    """
    owner: Any = next((module for module in model.modules() if "rankallocator" in module.__dict__), None)
    names = {} if owner is None else {id(p): name for name, p in owner.model.named_parameters()}
    return [_allocation(None if owner is None else owner.rankallocator, names, adapter) for adapter in adapters]


def _allocation(allocator: Any, names: dict[int, str], adapter: Adapter) -> Allocation:
    parts = {part: weight_of(getattr(adapter.layer, f"lora_{part}")[adapter.name]) for part in "EAB"}
    e, a, b = (names.get(id(parts[part]), "") for part in "EAB")
    rank = adapter.parts.rank or 0
    if allocator is not None and allocator.adapter_name == adapter.name:  # it trains one, others keep their ranks
        pattern = allocator.peft_config.rank_pattern or {}
        mask = pattern.get(e, pattern.get(e.replace(f".{adapter.name}", "")))
        rank = rank if mask is None else sum(mask)
        if {e, a, b} <= allocator.exp_avg_ipt.keys():
            with plain_arithmetic(parts["E"].device):
                scores = {part: allocator._element_score(name) for part, name in zip("EAB", (e, a, b), strict=True)}
                return Allocation(_combined(scores), ALLOCATOR, rank)
    gradients = {part: parameter.grad for part, parameter in parts.items() if parameter.grad is not None}
    with plain_arithmetic(parts["E"].device):
        if len(gradients) < len(parts):
            return Allocation(plain(parts["E"]).abs().flatten(), VALUES, rank)
        sensitivity = {part: (plain(p) * plain(gradients[part])).abs() for part, p in parts.items()}
        return Allocation(_combined(sensitivity), GRADIENTS, rank)


def _combined(scores: dict[str, Tensor]) -> Tensor:
    """s(E) + mean over a row of s(A) + mean over a column of s(B), by triplet."""
    return plain(scores["E"].flatten() + scores["A"].mean(1) + scores["B"].mean(0))
