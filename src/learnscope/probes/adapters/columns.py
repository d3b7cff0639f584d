"""What adapters are besides their spectrum: ranks and scales, AdaLoRA's importance, the vectors that some train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from learnscope.model.adapters.extras import NOT_ALLOCATED, adalora_allocations
from learnscope.model.adapters.inventory import Adapter
from learnscope.quantities import Quantity
from learnscope.quantities.adapters import AdapterSpectrum as Q
from learnscope.record import Column
from learnscope.tensor.context import plain


def plain_columns(members: Sequence[Adapter], labels: Mapping[str, str]) -> list[Column]:
    none = {place: one.parts.reason or "" for place, one in enumerate(members) if one.parts.factors is None}
    scaling = [None if one.parts.factors is None else one.parts.factors.scaling for one in members]
    vectors = {place: "it is a vector" for place, one in enumerate(members) if one.parts.rank is None}
    return [
        Q.rank.column([one.parts.rank for one in members], labels, vectors),
        Q.scaling.column(scaling, labels, none),
        Q.active.column([int(one.active) for one in members], labels),
        Q.merged.column([int(one.merged) for one in members], labels),
    ]


def adalora_columns(
    model: nn.Module, members: Sequence[Adapter], labels: Mapping[str, str], arrays: dict[str, Tensor]
) -> list[Column]:
    found = adalora_allocations(model, list(members))
    for one, allocation in zip(members, found, strict=True):
        if allocation.scores is not None:
            arrays[f"importance_scores/{one.name}/{one.scope}"] = allocation.scores
    sums = [None if one.scores is None else float(one.scores.double().sum()) for one in found]
    status = {place: NOT_ALLOCATED for place, value in enumerate(sums) if value is None}
    return [
        Q.importance_sum.column(sums, labels, status),
        Q.allocated_rank.column([one.rank for one in found], labels),
    ]


STATISTICS: tuple[tuple[Quantity, Callable[[Tensor], Tensor]], ...] = (
    (Q.vector_norm, torch.linalg.vector_norm),
    (Q.vector_mean, torch.mean),
    (Q.vector_std, lambda v: v.std(correction=0)),
    (Q.vector_min, torch.amin),
    (Q.vector_max, torch.amax),
)


def vector_columns(members: Sequence[Adapter], labels: Mapping[str, str]) -> list[Column]:
    columns = []
    for which in dict.fromkeys(vector for one in members for vector in one.parts.vectors):
        held = [one.parts.vectors.get(which) for one in members]
        marked = {**labels, "vector": which}
        absent = {place: f"it has no {which}" for place, one in enumerate(held) if one is None}
        for quantity, statistic in STATISTICS:
            row = [None if one is None else float(statistic(_wide(one[0]))) for one in held]
            columns.append(quantity.column(row, marked, absent))
        changes = [None if one is None or one[1] is None else _distance(one[0], one[1]) for one in held]
        unknown = {place: "what it began with is not known" for place, value in enumerate(changes) if value is None}
        columns.append(Q.vector_change.column(changes, marked, unknown | absent))
    return columns


def _wide(vector: Tensor) -> Tensor:
    return plain(vector).double().flatten()


def _distance(now: Tensor, then: Tensor) -> float:
    return float(torch.linalg.vector_norm(_wide(now) - _wide(then).to(now.device)))
