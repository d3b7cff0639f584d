"""A model's update with the changes of its matrices cut to a low rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from learnscope.model.weights.matrices import kernels_of
from learnscope.tensor.context import arithmetic_dtype, plain, plain_arithmetic
from learnscope.tensor.updates.lowrank import LowRank, NotDecomposedError, decompose


@dataclass
class LowRankUpdate:
    """ΔW of each matrix as factors; other parameters keep their whole update."""

    factors: dict[str, LowRank] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)
    undecomposed: list[str] = field(default_factory=list)
    """Matrices whose ΔW has entries that are not finite, or whose decomposition did not converge."""
    spare: dict[str, Tensor] = field(default_factory=dict)
    """Memory for the weights of a variant: the only copy of the changed matrices."""

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for parts in (self.factors, self.spare) for part in parts.values())

    def variant(self, previous: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
        """W_previous + ΔW cut to this rank, in each weight's dtype, for `swapped`; the next call overwrites it.

        Left out are matrices with no more than `rank` rows or columns, which keep their whole update.
        """
        weights = {}
        for name, factors in self.factors.items():
            if rank < factors.full_rank:
                factors.add_to(previous[name], rank, self.spare[name])
                weights[name] = self.spare[name]
        return weights


def matrix_names(model: nn.Module) -> tuple[list[str], list[str]]:
    """Matrices, and parameters of more dimensions that belong to no convolution.

    Kernels of convolutions, [out, in, k, …], are matrices [out, in·k·…]; both sides must be longer than 1.
    """
    kernels = kernels_of(model)
    matrices: list[str] = []
    others: list[str] = []
    for name, p in model.named_parameters():
        if p.is_floating_point() and p.ndim > 1 and min(p.shape[0], p[:1].numel()) > 1:
            (matrices if p.ndim == 2 or id(p) in kernels else others).append(name)
    return matrices, others


def decompose_update(
    now: Mapping[str, Tensor], previous: Mapping[str, Tensor], names: list[str], rank: int
) -> LowRankUpdate:
    """ΔW = W_now − W_previous of the named matrices, one at a time, in float32 (float64 for float64)."""
    update = LowRankUpdate()
    for name in names:
        after = plain(now[name])
        dtype = arithmetic_dtype(after)
        with plain_arithmetic(after.device):
            change = torch.sub(after.to(dtype), plain(previous[name]).to(after.device, dtype)).reshape(len(after), -1)
        try:
            factors = decompose(change, rank)
        except NotDecomposedError:
            update.undecomposed.append(name)
            continue
        if factors is None:
            update.unchanged.append(name)
        else:
            update.factors[name] = factors
            update.spare[name] = torch.empty_like(after)
    return update
