"""How much of an update is lost to rounding, from a sample of entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learnscope.moment import Moment, Subject
from learnscope.record import Column, Table
from learnscope.tensor.update import KNOWN, planned_update

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Some entries of one parameter before the step."""

    position: int
    entries: Tensor
    before: Tensor


def take_sample(subject: Subject, size: int) -> list[Sample]:
    """At most `size` entries of every trainable parameter, the same ones at every call."""
    samples = []
    for position, p in enumerate(subject.parameters):
        if not (p.requires_grad and p.is_floating_point() and p.numel()):
            continue
        generator = torch.Generator().manual_seed(position)
        n = p.numel()
        chosen = torch.arange(n) if n <= size else torch.randint(n, (size,), generator=generator)
        chosen = chosen.to(p.device)
        samples.append(Sample(position, chosen, _pick(p.detach(), chosen)))
    return samples


def absorbed_tables(moment: Moment, samples: Sequence[Sample]) -> list[Table]:
    """`absorbed_share` of the model and of each layer: entries with a non-zero update and unchanged bits.

    Layers are strata of unequal size: shares are weighted by entries, and the 95 % interval follows from the
    variance of a stratified proportion (with two successes and two failures added, Agresti and Coull 1998).
    """
    held = _holders(moment.optimizers)
    positions, shares, variances, weights, unknown = [], [], [], [], set()
    for sample in samples:
        p = moment.subject.parameters[sample.position]
        holder = held.get(id(p))
        if holder is None or p.grad is None:
            continue
        optimizer, group = holder
        known = type(optimizer).__name__ in KNOWN
        if not known or (_keeps_state(optimizer, group) and not optimizer.state.get(p)):
            unknown.add(type(optimizer).__name__)
            continue
        absorbed = _absorbed(optimizer, group, p, sample)
        n = absorbed.numel()
        shares.append(absorbed.double().mean())
        likely = (absorbed.sum().double() + 2) / (n + 4)
        variances.append(torch.zeros_like(likely) if n == p.numel() else likely * (1 - likely) / (n + 4))
        weights.append(float(p.numel()))
        positions.append(sample.position)
    if not positions:
        reason = f"the update of {', '.join(sorted(unknown))} is not known" if unknown else "no parameter was updated"
        return [Table("model", ["model"], [Column("absorbed_share", [None], {}, {0: reason})])]
    share, variance = torch.stack(shares).cpu(), torch.stack(variances).cpu()
    return [
        _stratified(moment, kind, positions, share, variance, torch.tensor(weights, dtype=torch.float64))
        for kind in ("model", "layer")
    ]


def _stratified(
    moment: Moment, kind: str, positions: Sequence[int], share: Tensor, variance: Tensor, weight: Tensor
) -> Table:
    segments = moment.subject.segments(kind, positions)
    total = segments.sum(weight)
    mean = segments.sum(weight * share) / total
    half = Z95 * segments.sum(weight.square() * variance).sqrt() / total
    columns = [
        Column("absorbed_share", mean),
        Column("absorbed_share_low", (mean - half).clamp(min=0)),
        Column("absorbed_share_high", (mean + half).clamp(max=1)),
    ]
    return Table(kind, segments.scopes, columns)


def _absorbed(optimizer: torch.optim.Optimizer, group: dict[str, Any], p: Tensor, sample: Sample) -> Tensor:
    state = {
        key: _pick(value, sample.entries) if value.shape == p.shape else value
        for key, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor)
    }
    assert p.grad is not None
    gradient = _pick(p.grad.to_dense() if p.grad.is_sparse else p.grad, sample.entries)
    update = planned_update(type(optimizer).__name__, group, state, sample.before, gradient)
    unchanged = _bits(_pick(p.detach(), sample.entries)) == _bits(sample.before)
    # a weight that is NaN or infinite stays so whatever is added: that is no rounding
    return (update != 0) & unchanged & sample.before.isfinite()


def _holders(
    optimizers: Sequence[torch.optim.Optimizer],
) -> dict[int, tuple[torch.optim.Optimizer, dict[str, Any]]]:
    return {id(p): (o, group) for o in optimizers for group in o.param_groups for p in group["params"]}


def _keeps_state(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    return type(optimizer).__name__ != "SGD" or bool(group.get("momentum"))


def _pick(tensor: Tensor, entries: Tensor) -> Tensor:
    return tensor.reshape(-1)[entries]


def _bits(values: Tensor) -> Tensor:
    return values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])
