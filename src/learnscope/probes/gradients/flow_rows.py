"""Numbers of every gradient, which the probes add up by scope: norms, and mean and variance of the entries."""

from __future__ import annotations

from collections.abc import Mapping
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

    A pass of its own over the gradients: before a clip if there is one, which may round small entries to 0. The loss
    scale is divided out again.
    """
    mean, centred = moment.once("gradient_spread", lambda: _unscaled_spread(gradients))
    entries = [moment.subject.parameters[i].numel() for i in gradients.positions]
    segments = moment.subject.segments(table.kind, gradients.positions)
    count = torch.tensor(entries, dtype=torch.float64, device="cpu")
    single = dict.fromkeys((segments.sum(count) == 1).nonzero().flatten().tolist(), "one entry has no variance")
    middle, variance = segments.spread(count.to(mean.device), mean, centred)
    columns = [Q.mean.column(middle, labels), Q.variance.column(variance, labels, single)]
    return replace(table, columns=[*table.columns, *columns])


def _unscaled_spread(gradients: Gradients) -> tuple[Tensor, Tensor]:
    mean, centred = gradient_spread(gradients.tensors) if gradients.spread is None else gradients.spread
    factor = 1 / torch.as_tensor(gradients.scale, dtype=torch.float64, device=mean.device)
    return mean * factor, centred * factor.square()
