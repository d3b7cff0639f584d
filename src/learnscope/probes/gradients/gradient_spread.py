"""Mean and variance of the entries of gradients, as they were before clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from learnscope.core.gradients import Gradients
from learnscope.core.moment import Moment
from learnscope.quantities.gradients import GradientFlow
from learnscope.record import Column, Label, Table
from learnscope.tensor.gradients.gradient import gradient_spread

NAMES = (GradientFlow.mean.name, GradientFlow.variance.name)


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
    columns = [GradientFlow.mean.column(middle, labels), GradientFlow.variance.column(variance, labels, single)]
    return replace(table, columns=[*table.columns, *columns])


def _before_clip(gradients: Gradients) -> tuple[Tensor, Tensor]:
    mean, centred = gradient_spread(gradients.tensors)
    factor = 1 / torch.as_tensor(gradients.scale, dtype=torch.float64, device=mean.device)
    if gradients.coefficients is not None:
        factor = factor / gradients.coefficients.to(mean.device)
    return mean * factor, centred * factor.square()


def spoilt_by_clip(tables: Sequence[Table]) -> list[Table]:
    """Say where the clip left no number: a factor of 0, or of NaN, cannot be divided out."""
    factors = [v for t in tables for c in t.columns if c.name == GradientFlow.clip_coefficient.name for v in c.values]
    if all(factors):
        return list(tables)
    return [replace(table, columns=[_spoilt(column) for column in table.columns]) for table in tables]


def _spoilt(column: Column) -> Column:
    if column.name not in NAMES:
        return column
    reason = "clipping left nothing to divide by: its factor was 0 or NaN"
    missing = [place for place, value in enumerate(column.values) if value is None]
    return replace(column, status={**column.status, **dict.fromkeys(missing, reason)})
