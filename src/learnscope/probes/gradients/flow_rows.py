"""Numbers of every gradient, which the probes add up by scope: norms, and mean and variance of the entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.moment import Moment
from learnscope.quantities import Quantity
from learnscope.quantities.gradients import GradientFlow as Q
from learnscope.record import Column, Label, Table
from learnscope.tensor.gradients.gradient import gradient_spread


@dataclass(frozen=True, slots=True)
class GradientRows:
    """One row for each tensor: a scope is a single sum over rows."""

    gradients: Gradients
    numbers: Tensor
    """Columns: Σg² before clipping and as stepped, zeros, nan, inf, entries."""
    labels: dict[str, Label]

    @classmethod
    def of(cls, moment: Moment, gradients: Gradients) -> GradientRows:
        table = gradients.table
        before = table.sum_squares / torch.as_tensor(gradients.scale, device=table.sum_squares.device).double() ** 2
        factors = gradients.coefficients
        stepped = before if factors is None else before * factors.to(before.device) ** 2
        entries = before.new_tensor([moment.subject.parameters[i].numel() for i in gradients.positions])
        numbers = torch.stack([before, stepped, table.zeros, table.nan, table.inf, entries], 1)
        origin = gradients.origin
        return cls(gradients, numbers, {} if origin == "accumulated" else {"origin": origin})

    def norm_columns(
        self,
        before: Tensor,
        stepped: Tensor,
        labels: Mapping[str, Label] | None = None,
        status: Mapping[int, str] | None = None,
        quantity: Quantity = Q.norm,
    ) -> list[Column]:
        """The norms of scopes from their sums of squares; those before a clip only where one was seen."""
        stages = {"stepped": stepped} | ({} if self.gradients.coefficients is None else {"before_clip": before})
        marked = {**self.labels, **(labels or {})}
        return [quantity.column(sums.sqrt(), {**marked, "stage": s}, status) for s, sums in stages.items()]


def with_spread(moment: Moment, gradients: Gradients, table: Table, labels: Mapping[str, Label]) -> Table:
    """The table with the mean and the unbiased variance of g over the entries of each scope.

    A pass of its own over the gradients as they are. If they were clipped, the factor is divided out again, and the
    loss scale with it: exact up to the rounding of the gradients' own dtype.
    """
    mean, centred = moment.once("gradient_spread", lambda: _before_clip(gradients))
    entries = [moment.subject.parameters[i].numel() for i in gradients.positions]
    segments = moment.subject.segments(table.kind, gradients.positions)
    count = torch.tensor(entries, dtype=torch.float64, device="cpu")
    single = dict.fromkeys((segments.sum(count) == 1).nonzero().flatten().tolist(), "one entry has no variance")
    middle, variance = segments.spread(count.to(mean.device), mean, centred)
    columns = [Q.mean.column(middle, labels), Q.variance.column(variance, labels, single)]
    return replace(table, columns=[*table.columns, *columns])


def _before_clip(gradients: Gradients) -> tuple[Tensor, Tensor]:
    mean, centred = gradient_spread(gradients.tensors)
    factor = 1 / torch.as_tensor(gradients.scale, dtype=torch.float64, device=mean.device)
    if gradients.coefficients is not None:
        factor = factor / gradients.coefficients.to(mean.device)
    return mean * factor, centred * factor.square()


def spoilt_by_clip(tables: Sequence[Table]) -> list[Table]:
    """Say where the clip left no number: a factor of 0, or of NaN, cannot be divided out."""
    factors = [v for t in tables for c in t.columns if c.name == Q.clip_coefficient.name for v in c.values]
    if all(factors):
        return list(tables)
    return [replace(table, columns=[_spoilt(column) for column in table.columns]) for table in tables]


def _spoilt(column: Column) -> Column:
    if column.name not in (Q.mean.name, Q.variance.name):
        return column
    reason = "clipping left nothing to divide by: its factor was 0 or NaN"
    missing = [place for place, value in enumerate(column.values) if value is None]
    return replace(column, status={**column.status, **dict.fromkeys(missing, reason)})
